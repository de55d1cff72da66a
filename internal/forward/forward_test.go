package forward

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/inboxd/inboxd/internal/inbox"
)

// quiet makes the breaker stay out of tests of single answers.
var quiet = BreakerOptions{Unreachable: 1 << 30, Misconfigure: 1 << 30, Refusals: 1 << 30, MinRequests: 1 << 30}

// newForwarder returns a running Forwarder; change may be nil.
func newForwarder(t testing.TB, url string, change func(*Options)) *Forwarder {
	t.Helper()
	o := Options{ConsumerName: "billing", URL: url, Breaker: quiet, Timeout: 5 * time.Second}
	if change != nil {
		change(&o)
	}
	f, err := New(o, inbox.NewGate(), slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); f.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done; f.Kill() })
	return f
}

func newDelivery(id string) *inbox.Delivery {
	return &inbox.Delivery{
		ID:      inbox.MessageID(id),
		Message: inbox.Message{Body: []byte(`{"order":1}`), Properties: inbox.Properties{ContentType: "application/json"}},
	}
}

func newServer(t testing.TB, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

// cut ends the connection of w without an answer.
func cut(w http.ResponseWriter) {
	c, _, err := w.(http.Hijacker).Hijack()
	if err == nil {
		c.Close()
	}
}

func TestEveryRowOfTheAnswerTable(t *testing.T) {
	t.Parallel()
	rows := map[inbox.Verdict][]int{
		inbox.Done:          {200, 201, 202, 204, 206, 226, 299},
		inbox.Busy:          {409, 425},
		inbox.NotNow:        {408, 429, 502, 503, 504},
		inbox.Failed:        {500, 501, 505, 507, 511, 599},
		inbox.NoAnswer:      {101, 600, 999},
		inbox.Refused:       {400, 413, 415, 422},
		inbox.Misconfigured: {300, 301, 302, 303, 304, 307, 308, 401, 402, 403, 404, 405, 406, 407, 411, 414, 418, 421, 426, 428, 431, 451, 499},
		inbox.Gone:          {410},
	}
	var status atomic.Int64
	var elsewhere atomic.Int64
	other := newServer(t, func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) })
	h := func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Location", other.URL)
		code := int(status.Load())
		if code == 101 {
			c, _, _ := w.(http.Hijacker).Hijack()
			io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n")
			c.Close()
			return
		}
		w.WriteHeader(code)
	}
	targets := map[string]*Forwarder{
		"tcp":  newForwarder(t, newServer(t, h).URL+"/messages", nil),
		"unix": newForwarder(t, newUnixServer(t, h)+":/messages", nil),
		"tls":  newTLSForwarder(t, h),
	}
	for name, f := range targets {
		for want, codes := range rows {
			for _, code := range codes {
				status.Store(int64(code))
				d := newDelivery("m")
				a := f.Forward(t.Context(), d)
				if a.Verdict != want || code < 600 && a.Status != code && code != 101 {
					t.Errorf("%s: status %d: got %s (status %d, %v), want %s", name, code, a.Verdict, a.Status, a.Err, want)
				}
				if (a.Err == nil) != (want == inbox.Done) {
					t.Errorf("%s: status %d: got error %v", name, code, a.Err)
				}
				if d.Requests != 1 || d.LastAttempt.IsZero() {
					t.Errorf("%s: status %d: got %d requests, last at %v; want 1", name, code, d.Requests, d.LastAttempt)
				}
			}
		}
	}
	if n := elsewhere.Load(); n != 0 {
		t.Errorf("got %d followed redirects, want 0", n)
	}
}

func newUnixServer(t testing.TB, h http.HandlerFunc) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "app.sock")
	serveUnix(t, path, h)
	return "http+unix://" + path
}

func serveUnix(t testing.TB, path string, h http.HandlerFunc) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: h}}
	s.Start()
	t.Cleanup(s.Close)
}

func TestInboxActionOverrulesTheTable(t *testing.T) {
	t.Parallel()
	s := newServer(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Inbox-Action", r.Header.Get("Amqp-Type"))
		status, _ := strconv.Atoi(r.Header.Get("Amqp-Message-Id"))
		w.WriteHeader(status)
	})
	f := newForwarder(t, s.URL, nil)
	for _, c := range []struct {
		action string
		status int
		want   inbox.Verdict
	}{
		{"ack", 500, inbox.Done},
		{"ACK", 404, inbox.Done},
		{"retry", 200, inbox.Failed},
		{"retry", 400, inbox.Failed},
		{"park", 200, inbox.Refused},
		{"park", 503, inbox.Refused},
		{"", 500, inbox.Failed},
		{"later", 400, inbox.Refused},
	} {
		d := newDelivery("m")
		d.Properties.Type, d.Properties.MessageID = c.action, strconv.Itoa(c.status)
		if a := f.Forward(t.Context(), d); a.Verdict != c.want {
			t.Errorf("Inbox-Action %q with status %d: got %s, want %s", c.action, c.status, a.Verdict, c.want)
		}
	}
}

func TestNobodyThereIsUnreachable(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := "http://" + l.Addr().String()
	l.Close()
	for name, url := range map[string]string{
		"refused":   closed,
		"no socket": "http+unix://" + filepath.Join(t.TempDir(), "none.sock") + ":/",
		"no name":   "http://nobody.invalid/",
	} {
		f := newForwarder(t, url, nil)
		d := newDelivery("m")
		a := f.Forward(t.Context(), d)
		if a.Verdict != inbox.Unreachable || a.Err == nil || d.Requests != 0 || !d.LastAttempt.IsZero() {
			t.Errorf("%s: got %s (%v), %d requests; want unreachable, 0 requests", name, a.Verdict, a.Err, d.Requests)
		}
	}
}

// The transport of net/http repeats a request that carries Idempotency-Key by
// itself; five warm connections made six requests of one.
func TestHandlerThatDiesSeesOneRequestForEachAttempt(t *testing.T) {
	t.Parallel()
	for _, body := range []string{"", "x", strings.Repeat("x", 1<<20)} {
		t.Run(fmt.Sprint(len(body)), func(t *testing.T) {
			t.Parallel()
			var requests, dying atomic.Int64
			meet := meeting(5)
			var numbers atomic.Value
			numbers.Store("")
			s := newServer(t, func(w http.ResponseWriter, r *http.Request) {
				if _, err := io.Copy(io.Discard, r.Body); err != nil {
					t.Error(err)
				}
				if dying.Load() == 0 {
					meet()
					return
				}
				if r.Header.Get("Idempotency-Key") != "m" || r.ContentLength != int64(len(body)) || len(r.TransferEncoding) > 0 {
					t.Errorf("got key %q, length %d, coding %v; want m, %d, none",
						r.Header.Get("Idempotency-Key"), r.ContentLength, r.TransferEncoding, len(body))
				}
				requests.Add(1)
				numbers.Store(numbers.Load().(string) + r.Header.Get("Inbox-Attempt") + " ")
				cut(w)
			})
			f := newForwarder(t, s.URL, nil)
			warm(t, f, 5)
			dying.Store(1)
			d := newDelivery("m")
			d.Body = []byte(body)
			for range 3 {
				if a := f.Forward(t.Context(), d); a.Verdict != inbox.NoAnswer {
					t.Errorf("got %s (%v), want no_answer", a.Verdict, a.Err)
				}
			}
			if got, want := requests.Load(), int64(d.Requests); got != want {
				t.Errorf("the handler saw %d requests, the delivery counts %d", got, want)
			}
			// The first met a warm connection, which is repeated once.
			if got, want := numbers.Load(), "1 2 3 4 "; got != want {
				t.Errorf("got Inbox-Attempt %q, want %q", got, want)
			}
		})
	}
}

// warm leaves n idle connections: n requests that wait for each other at the
// handler, which calls meet.
func warm(t *testing.T, f *Forwarder, n int) {
	t.Helper()
	done := make(chan inbox.Answer)
	for range n {
		go func() { done <- f.Forward(context.Background(), newDelivery("m")) }()
	}
	for range n {
		if a := <-done; a.Verdict != inbox.Done {
			t.Errorf("warming up: got %s (%v), want done", a.Verdict, a.Err)
		}
	}
}

// meeting returns a function that blocks until n callers are in it.
func meeting(n int) func() {
	var wg sync.WaitGroup
	wg.Add(n)
	return func() { wg.Done(); wg.Wait() }
}
