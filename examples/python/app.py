"""Orders behind inboxd: Python, psycopg 3 and the standard library's HTTP server.

Debian: python3-psycopg python3-psycopg-pool; pip: psycopg[binary,pool]
"""
import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psycopg
from psycopg_pool import ConnectionPool

pool = ConnectionPool(os.environ["DATABASE_URL"], min_size=1, max_size=16)


def take_order(consumer, key, fingerprint, order):
    """Commits the key and the order together; False: they were committed before."""
    with pool.connection() as db:  # commits at the end, rolls back on an exception
        claim = db.execute("select inbox_claim(%s, %s, %s)", (consumer, key, fingerprint))
        if not claim.fetchone()[0]:
            return False
        db.execute(
            "insert into orders (order_id, customer, amount_cents) values (%s, %s, %s)",
            (order["order_id"], order["customer"], order["amount_cents"]),
        )
    return True  # only now it is committed


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.answer(200 if self.path == "/healthz" else 404)

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path != "/messages":
            return self.answer(404)
        key, consumer = self.headers.get("Idempotency-Key"), self.headers.get("Inbox-Consumer")
        try:
            order = json.loads(body)
            if not key or not consumer or not {"order_id", "customer", "amount_cents"} <= order.keys():
                raise ValueError("a header or a field is missing")
        except (ValueError, AttributeError):
            return self.answer(400)  # this message will never do: it is parked
        try:
            new = take_order(consumer, key, self.headers.get("Inbox-Fingerprint"), order)
        except psycopg.Error as e:
            if e.sqlstate == "IB422":  # the key was used for another body
                return self.answer(422)
            if e.sqlstate and e.sqlstate[:2] in ("22", "23"):  # the order's own data
                return self.answer(400)
            return self.answer(500)  # sent again later
        except Exception:
            return self.answer(500)
        self.answer(200, "processed" if new else "duplicate")

    def answer(self, status, outcome=None):
        self.send_response(status)
        self.send_header("Content-Length", "0")
        if outcome:
            self.send_header("Inbox-Outcome", outcome)
        self.end_headers()

    def log_message(self, *args):
        pass


class Server(ThreadingHTTPServer):
    request_queue_size = 128


if __name__ == "__main__":
    Server(("127.0.0.1", int(os.environ.get("PORT", 8080))), Handler).serve_forever()
