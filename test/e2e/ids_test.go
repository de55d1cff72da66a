package e2e

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/inboxd/inboxd/internal/testenv"
)

// oddIDs are message IDs that a broker passes on unchanged and that something
// between here and a handler is known to merge, cut or refuse.
var oddIDs = []string{
	"a", " a", "a ", "A", "a\r\nX-Evil: 1", "a\x00", "a\xff\xfe", "%61", "a%20", "%", "ä", "a\u0308", "🧾", "a,b", `"a"`,
	strings.Repeat("x", 255), strings.Repeat("y", 254) + " ",
	"sha256:" + strings.Repeat("0", 64),
}

// handlers in three languages that write each Idempotency-Key they get, as they
// get it, as one line of hex to a file.
var pythonHandler = `
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
out = open(sys.argv[2], "ab", buffering=0)
class H(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        out.write(self.headers["Idempotency-Key"].encode("latin-1").hex().encode() + b"\n")
        self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()
    def log_message(self, *a): pass
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), H).serve_forever()
`

var nodeHandler = `
const http = require("http"), fs = require("fs");
http.createServer((req, res) => {
  req.resume();
  req.on("end", () => {
    fs.appendFileSync(process.argv[3], Buffer.from(req.headers["idempotency-key"], "latin1").toString("hex") + "\n");
    res.end();
  });
}).listen(+process.argv[2], "127.0.0.1");
`

func TestOddMessageIDsStayDistinctAtHandlersOfThreeLanguages(t *testing.T) {
	t.Parallel()
	amqpURL := testenv.AMQPURL(t)
	for lang, run := range map[string]func(t *testing.T) (url string, keys func() map[string]int){
		"go": func(t *testing.T) (string, func() map[string]int) {
			a := newApp(t, nil)
			return a.URL, func() map[string]int {
				a.mu.Lock()
				defer a.mu.Unlock()
				seen := map[string]int{}
				for k, n := range a.requests {
					seen[k] = n
				}
				return seen
			}
		},
		"python": func(t *testing.T) (string, func() map[string]int) { return script(t, "python3", "h.py", pythonHandler) },
		"node":   func(t *testing.T) (string, func() map[string]int) { return script(t, "node", "h.js", nodeHandler) },
	} {
		t.Run(lang, func(t *testing.T) {
			t.Parallel()
			url, keys := run(t)
			q := queue(t, amqpURL, "quorum")
			d := newDaemon(t, settings{
				amqp: amqpURL, queue: q, handler: url,
				consumer: "    message_id: [\"header:id\", property]\n",
			})
			var messages []amqp.Publishing
			for _, id := range oddIDs {
				messages = append(messages, amqp.Publishing{MessageId: id, Body: []byte(id)})
			}
			// Longer than a short string can be: 4,000 bytes, from a header.
			long := []string{strings.Repeat("z", 4000), strings.Repeat("z", 3999) + "y"}
			for _, id := range long {
				messages = append(messages, amqp.Publishing{Headers: amqp.Table{"id": id}, Body: []byte(id)})
			}
			publish(t, amqpURL, q, messages...)
			d.start()
			want := len(oddIDs) + len(long)
			eventually(t, 30*time.Second, "every message is processed", func() bool { return d.outcome("processed") == want })
			seen := keys()
			if len(seen) != want {
				t.Errorf("the handler saw %d keys for %d IDs: %v", len(seen), want, seen)
			}
			// Each again: all are known, whatever the way to the handler does to them.
			publish(t, amqpURL, q, messages...)
			eventually(t, 30*time.Second, "every copy is a duplicate", func() bool { return d.outcome("duplicate") == want })
			d.stop()
		})
	}
}

// script runs a handler of another language; its keys come back from a file.
func script(t *testing.T, interpreter, name, text string) (string, func() map[string]int) {
	t.Helper()
	path := testenv.Program(t, interpreter)
	dir := t.TempDir()
	file, out := filepath.Join(dir, name), filepath.Join(dir, "keys")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(testenv.FreeAddr(t))
	cmd := exec.Command(path, file, port, out)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	eventually(t, 20*time.Second, interpreter+" listens", func() bool {
		c, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	return "http://127.0.0.1:" + port + "/", func() map[string]int {
		seen := map[string]int{}
		f, err := os.Open(out)
		if err != nil {
			return seen
		}
		defer f.Close()
		for s := bufio.NewScanner(f); s.Scan(); {
			seen[s.Text()]++
		}
		return seen
	}
}

func TestMissingAndMismatchedMessagesAreParkedWhole(t *testing.T) {
	t.Parallel()
	amqpURL := testenv.AMQPURL(t)
	stores(t, func(t *testing.T, storeURL func(*testing.T) string) {
		q := queue(t, amqpURL, "quorum")
		handler := newApp(t, nil)
		d := newDaemon(t, settings{amqp: amqpURL, queue: q, handler: handler.URL, store: storeURL(t)})
		d.start()
		d.awaitConsuming(20 * time.Second)
		publish(t, amqpURL, q, amqp.Publishing{MessageId: "same", Body: []byte("one")})
		eventually(t, 10*time.Second, "the first is processed", func() bool { return d.outcome("processed") == 1 })
		publish(t, amqpURL, q,
			amqp.Publishing{Body: []byte("\x00 no ID \xff"), Headers: amqp.Table{"k": "v\x00\xff", "n": int64(1) << 40}},
			amqp.Publishing{Body: []byte("no ID either")},
			amqp.Publishing{MessageId: "same", Body: []byte("two")},
		)
		eventually(t, 10*time.Second, "three are parked", func() bool { return d.outcome("parked") == 3 })
		for reason, want := range map[string]float64{"missing_id": 2, "mismatch": 1} {
			if got := d.metric("inboxd_parked_total", `reason="`+reason+`"`); got != want {
				t.Errorf("parked_total %s: got %v, want %v", reason, got, want)
			}
		}
		if got := d.metric("inboxd_mismatches_total"); got != 1 {
			t.Errorf("mismatches_total: got %v, want 1", got)
		}
		code, out, stderr := d.cli("parked", "list", "-c", d.config)
		if code != 0 || strings.Count(out, "missing_id") != 2 || strings.Count(out, "mismatch") != 1 {
			t.Errorf("parked list: exit %d\n%s%s", code, out, stderr)
		}
		code, out, stderr = d.cli("parked", "export", "-c", d.config)
		if code != 0 || strings.Count(strings.TrimSpace(out), "\n") != 2 || !strings.Contains(out, "ACBubyBJRCD/") {
			t.Errorf("parked export: exit %d, want three lines, one with the bytes of the body\n%s%s", code, out, stderr)
		}
		d.stop()
	})
}

func TestAParkedMessageIsReplayedWithItsKey(t *testing.T) {
	t.Parallel()
	amqpURL := testenv.AMQPURL(t)
	stores(t, func(t *testing.T, storeURL func(*testing.T) string) {
		q := queue(t, amqpURL, "quorum")
		mended := make(chan struct{})
		handler := newApp(t, nil)
		handler.answer = func(w http.ResponseWriter, r *http.Request, key string, body []byte) {
			select {
			case <-mended:
			default:
				w.WriteHeader(http.StatusUnprocessableEntity)
				fmt.Fprintf(w, "no such customer for %s", body)
			}
		}
		d := newDaemon(t, settings{amqp: amqpURL, queue: q, handler: handler.URL, store: storeURL(t)})
		d.start()
		publish(t, amqpURL, q, amqp.Publishing{
			MessageId: "replay me", Body: []byte("body"), ContentType: "text/plain",
			Headers: amqp.Table{"tenant": "t1"},
		})
		eventually(t, 20*time.Second, "it is parked", func() bool { return d.outcome("parked") == 1 })
		code, out, stderr := d.cli("parked", "list", "-c", d.config, "--json")
		if code != 0 || !strings.Contains(out, "rejected") {
			t.Fatalf("parked list: exit %d\n%s%s", code, out, stderr)
		}
		id := between(out, `"id":"`, `"`)
		code, out, stderr = d.cli("parked", "show", "-c", d.config, id)
		if code != 0 || !strings.Contains(out, "no such customer") || !strings.Contains(out, "tenant") {
			t.Errorf("parked show: exit %d\n%s%s", code, out, stderr)
		}
		close(mended)
		if code, out, stderr = d.cli("parked", "replay", "-c", d.config, "--reason", "customer created", id); code != 0 {
			t.Fatalf("parked replay: exit %d\n%s%s", code, out, stderr)
		}
		eventually(t, 20*time.Second, "it is processed", func() bool { return d.outcome("processed") == 1 })
		if got := handler.seen("replay%20me"); got != 2 {
			t.Errorf("requests with its key: got %d, want 2", got)
		}
		eventually(t, 10*time.Second, "nothing is parked any more", func() bool {
			_, out, _ := d.cli("parked", "list", "-c", d.config, "--json")
			return !strings.Contains(out, id)
		})
		code, out, stderr = d.cli("show", "-c", d.config, "--raw", "billing", "replay me")
		if code != 0 || !strings.Contains(out, "processed") {
			t.Errorf("show: exit %d\n%s%s", code, out, stderr)
		}
		if code, out, stderr = d.cli("forget", "-c", d.config, "--reason", "test", "billing", "replay%20me"); code != 0 {
			t.Errorf("forget: exit %d\n%s%s", code, out, stderr)
		}
		publish(t, amqpURL, q, amqp.Publishing{MessageId: "replay me", Body: []byte("body")})
		eventually(t, 20*time.Second, "it is processed again on purpose", func() bool { return d.outcome("processed") == 2 })
		code, out, stderr = d.cli("record", "-c", d.config, "--reason", "done by hand", "--raw", "billing", "by hand")
		if code != 0 {
			t.Errorf("record: exit %d\n%s%s", code, out, stderr)
		}
		publish(t, amqpURL, q, amqp.Publishing{MessageId: "by hand", Body: []byte("body")})
		eventually(t, 20*time.Second, "what was recorded by hand is a duplicate", func() bool { return d.outcome("duplicate") == 1 })
		code, out, _ = d.cli("audit", "-c", d.config)
		for _, verb := range []string{"replay", "forget", "record", "customer created", "done by hand"} {
			if !strings.Contains(out, verb) {
				t.Errorf("the audit (exit %d) lacks %q:\n%s", code, verb, out)
			}
		}
		d.stop()
	})
}

func between(s, before, after string) string {
	_, s, _ = strings.Cut(strings.ReplaceAll(s, `": "`, `":"`), before)
	s, _, _ = strings.Cut(s, after)
	return s
}
