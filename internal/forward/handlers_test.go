package forward

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os/exec"
	"strings"
	"testing"

	"github.com/inboxd/inboxd/internal/inbox"
	"github.com/inboxd/inboxd/internal/testenv"
)

// startHandler runs a program that prints its port, and returns its URL.
func startHandler(t *testing.T, name string, args ...string) string {
	t.Helper()
	path := testenv.Program(t, name)
	cmd := exec.CommandContext(t.Context(), path, args...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	port, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("%s did not start: %v", name, err)
	}
	return "http://127.0.0.1:" + strings.TrimSpace(port) + "/messages"
}

func goHandler(t *testing.T) string {
	return newServer(t, func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		seen := map[string]string{"body-length": fmt.Sprint(n), "host": r.Host}
		for _, name := range []string{"idempotency-key", "amqp-message-id", "amqp-encoded"} {
			v := strings.Join(r.Header.Values(name), ", ")
			seen[name] = v[:min(len(v), 1000)]
		}
		json.NewEncoder(w).Encode(seen)
	}).URL
}

// awkwardIDs are different IDs that careless ways to a handler make equal, or
// that no HTTP header can carry.
var awkwardIDs = []string{
	"a", " a", "a ", "\ta", "a\t", "a%20", "%20a", "A", "a,", "a, a", `"a"`, `a"`, `a\`, "a;b=c", "\"", "a=", "a/b", "a?b#c", "a+b", "a b", "a  b",
	"a\r\nHost: evil", "a\r\n", "a\n", "a\r", "\n", "\x00", "a\x00", "a\x00b", "\x7f", "\xff", "\xff\xfe", "a\xc3", "é", "e\u0301", "\u00e9 ",
	"😀", "😀😀", "\u2028", "%", "%%", "%25", "%2525", "100%", "null", "undefined", "0", "00", "-",
	strings.Repeat("x", 255), strings.Repeat("x", 254), strings.Repeat("é", 127), strings.Repeat("x", 4000), strings.Repeat("x", 4001),
	strings.Repeat("😀", 1000), strings.Repeat(" ", 255), strings.Repeat("%", 255),
}

// Different IDs are different keys at the handler, the raw ID can be read from
// Amqp-Message-Id, and none of them stops anything.
func TestDifferentIDsAreDifferentKeysAtRealHandlers(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) string{
		"go":     goHandler,
		"python": func(t *testing.T) string { return startHandler(t, "python3", "testdata/echo.py") },
		"node":   func(t *testing.T) string { return startHandler(t, "node", "testdata/echo.js") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			target := start(t)
			for _, format := range []KeyFormat{KeyRaw, KeyQuoted} {
				f := newForwarder(t, target, func(o *Options) { o.IdempotencyKey = format })
				keys := map[string]string{}
				for _, id := range awkwardIDs {
					d := newDelivery(string(inbox.Canonical([]byte(id))))
					d.Properties.MessageID = id
					seen := ask(t, f, d)
					key := seen["idempotency-key"]
					if other, twice := keys[key]; twice || key == "" {
						t.Errorf("%s: IDs %.40q and %.40q have the same key %q", format, id, other, key)
					}
					keys[key] = id
					if got := decoded(seen, "amqp-message-id"); len(id) <= 255 && got != id {
						t.Errorf("%s: got Amqp-Message-Id %.300q, want %.300q", format, got, id)
					}
					if got := fmt.Sprint(len(d.Body)); seen["body-length"] != got || seen["host"] == "evil" {
						t.Errorf("%s: ID %.40q: got body of %s and host %s, want %s", format, id, seen["body-length"], seen["host"], got)
					}
				}
			}
		})
	}
}

// ask returns what the handler sees.
func ask(t *testing.T, f *Forwarder, d *inbox.Delivery) map[string]string {
	t.Helper()
	a := f.Forward(t.Context(), d)
	if a.Verdict != inbox.Done {
		t.Fatalf("ID %.40q: got %s (%v), want done", d.Properties.MessageID, a.Verdict, a.Err)
	}
	var seen map[string]string
	if err := json.Unmarshal(a.Excerpt, &seen); err != nil {
		t.Fatalf("ID %.40q: got %q: %v", d.Properties.MessageID, a.Excerpt, err)
	}
	return seen
}

// decoded reads a header as docs tell handlers to.
func decoded(seen map[string]string, name string) string {
	for encoded := range strings.SplitSeq(seen["amqp-encoded"], ", ") {
		if strings.EqualFold(encoded, name) {
			s, err := url.PathUnescape(seen[name])
			if err != nil {
				return err.Error()
			}
			return s
		}
	}
	return seen[name]
}

// A header at its limits is taken by servers with their default settings.
func TestRealHandlersTakeTheLargestHeader(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) string{
		"go":     goHandler,
		"python": func(t *testing.T) string { return startHandler(t, "python3", "testdata/echo.py") },
		"node":   func(t *testing.T) string { return startHandler(t, "node", "testdata/echo.js") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newForwarder(t, start(t), nil)
			d := newDelivery(strings.Repeat("k", 255))
			d.Properties.ContentType = "application/json; x=" + strings.Repeat("y", 230)
			d.Headers = inbox.Table{}
			for i := range 200 {
				d.Headers[fmt.Sprintf("h%03d", i)] = strings.Repeat("ü", i)
			}
			if a := f.Forward(t.Context(), d); a.Verdict != inbox.Done {
				t.Errorf("got %s (%v), want done", a.Verdict, a.Err)
			}
		})
	}
}
