# Answers every POST with what the application sees of some headers, in JSON, as
# Python's standard library reads them.
import http.server
import json

NAMES = ["idempotency-key", "amqp-message-id", "amqp-encoded", "host", "content-length"]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        seen = {name: self.headers.get(name, "")[:1000] for name in NAMES}
        seen["body-length"] = str(len(body))
        answer = json.dumps(seen).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
