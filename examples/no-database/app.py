"""Orders behind inboxd without a database: three ways to need no inbox table. The
files under DATA_DIR stand for what the service has: an object store, an API."""
import fcntl
import json
import os
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote


def put(path, state, place):
    """Writes state durably, then moves it to path by place: os.link or os.replace."""
    new = f"{path}.{uuid.uuid4()}"
    with open(new, "w") as f:
        json.dump(state, f)
        f.flush()
        os.fsync(f.fileno())
    try:
        place(new, path)
    finally:
        if place is os.link:
            os.unlink(new)


def unique_business_key(path, new):
    """The first message about an order wins: its file can be created once."""
    try:
        put(path, new, os.link)
    except FileExistsError:
        return "duplicate"


def whole_state(path, new):
    """The message tells a state, not a change: doing it twice is doing it once."""
    put(path, new, os.replace)


def optimistic_version(path, new):
    """Only a higher version is written; the lock makes look and write one step."""
    with open(path + ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        old = known(path)
        if old and old["order"]["version"] >= new["order"]["version"]:
            return "duplicate"  # the same, or older and late
        put(path, new, os.replace)


def known(path):
    return json.load(open(path)) if os.path.exists(path) else None


RULES = {"/messages": unique_business_key, "/states": whole_state, "/versions": optimistic_version}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/healthz" else 404)
        self.end_headers()

    def do_POST(self):
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        new = {"key": self.headers["Idempotency-Key"], "fingerprint": self.headers["Inbox-Fingerprint"], "order": order}
        folder = os.path.join(os.environ["DATA_DIR"], self.path[1:])
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, quote(order["order_id"], safe=""))
        old = known(path)
        if old and old["key"] == new["key"] and old["fingerprint"] != new["fingerprint"]:
            self.send_response(422)  # the key was used for another body
        else:
            self.send_response(200)
            self.send_header("Inbox-Outcome", RULES[self.path](path, new) or "processed")
        self.end_headers()

    def log_message(self, *args):
        pass


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", 8080))), Handler).serve_forever()
