package forward

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
)

func TestBodyArrivesByteForByte(t *testing.T) {
	t.Parallel()
	var want atomic.Pointer[[]byte]
	f := newForwarder(t, newServer(t, func(w http.ResponseWriter, r *http.Request) {
		got, err := io.ReadAll(r.Body)
		if err != nil || !bytes.Equal(got, *want.Load()) || r.ContentLength != int64(len(got)) {
			t.Errorf("got %d bytes of length %d (%v), want %d", len(got), r.ContentLength, err, len(*want.Load()))
		}
		if r.Method != http.MethodPost || r.URL.RequestURI() != "/in?a=b" || len(r.TransferEncoding) > 0 ||
			r.Header.Get("Expect") != "" || r.Header.Get("Accept-Encoding") != "" {
			t.Errorf("got %s %s with %v", r.Method, r.URL, r.Header)
		}
	}).URL+"/in?a=b", nil)
	for _, body := range [][]byte{nil, {0}, []byte("\r\n\r\n"), bytes.Repeat([]byte{0xff}, 3<<20)} {
		want.Store(&body)
		d := newDelivery("m")
		d.Body = body
		if a := f.Forward(t.Context(), d); a.Verdict != inbox.Done {
			t.Errorf("got %s (%v), want done", a.Verdict, a.Err)
		}
	}
}

func TestHangingHandlerTimesOutAndCounts(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	var requests atomic.Int64
	s := newServer(t, func(http.ResponseWriter, *http.Request) { requests.Add(1); <-release })
	defer close(release)
	f := newForwarder(t, s.URL, func(o *Options) { o.Timeout = 100 * time.Millisecond })
	d := newDelivery("m")
	a := f.Forward(t.Context(), d)
	if a.Verdict != inbox.NoAnswer || d.Requests != 1 || requests.Load() != 1 || a.Err.Error() != "no answer within 100ms" {
		t.Errorf("got %s (%v) after %d requests, want no_answer after 1", a.Verdict, a.Err, requests.Load())
	}
}

// Only the end of the wait depends on the delivery's context: a request under
// way goes on when the broker connection breaks.
func TestRequestUnderWayOutlivesItsDelivery(t *testing.T) {
	t.Parallel()
	arrived, release := make(chan struct{}), make(chan struct{})
	s := newServer(t, func(http.ResponseWriter, *http.Request) { close(arrived); <-release })
	f := newForwarder(t, s.URL, func(o *Options) { o.Concurrency = 1 })
	ctx, cancel := context.WithCancelCause(t.Context())
	first := make(chan inbox.Answer)
	go func() { first <- f.Forward(ctx, newDelivery("a")) }()
	<-arrived
	second := make(chan inbox.Answer)
	go func() { second <- f.Forward(ctx, newDelivery("b")) }()
	lost := errors.New("session lost")
	cancel(lost)
	if a := <-second; a.Verdict != inbox.NotSent || !errors.Is(a.Err, lost) {
		t.Errorf("waiting request: got %s (%v), want not_sent because the session was lost", a.Verdict, a.Err)
	}
	close(release)
	if a := <-first; a.Verdict != inbox.Done {
		t.Errorf("request under way: got %s (%v), want done", a.Verdict, a.Err)
	}
}

func TestKillCutsRequestsShort(t *testing.T) {
	t.Parallel()
	arrived, release := make(chan struct{}), make(chan struct{})
	s := newServer(t, func(http.ResponseWriter, *http.Request) { close(arrived); <-release })
	defer close(release)
	f := newForwarder(t, s.URL, nil)
	first := make(chan inbox.Answer)
	go func() { first <- f.Forward(t.Context(), newDelivery("a")) }()
	<-arrived
	f.Kill()
	if a := <-first; a.Verdict != inbox.NoAnswer || !errors.Is(a.Err, ErrKilled) {
		t.Errorf("got %s (%v), want no_answer, killed", a.Verdict, a.Err)
	}
	if a := f.Forward(t.Context(), newDelivery("b")); a.Verdict != inbox.NotSent || !errors.Is(a.Err, ErrKilled) {
		t.Errorf("after Kill: got %s (%v), want not_sent, killed", a.Verdict, a.Err)
	}
}

func TestAnswersThatAreTooMuch(t *testing.T) {
	t.Parallel()
	bomb := new(bytes.Buffer)
	z := gzip.NewWriter(bomb)
	z.Write(make([]byte, 8<<20))
	z.Close()
	gone := make(chan struct{})
	s := newServer(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/bomb":
			w.Header().Set("Content-Encoding", "gzip")
			w.Write(bomb.Bytes())
		case "/endless":
			for r.Context().Err() == nil {
				if _, err := w.Write(make([]byte, 32<<10)); err != nil {
					break
				}
			}
		case "/slow":
			io.WriteString(w, "start")
			w.(http.Flusher).Flush()
			<-r.Context().Done() // the client must hang up
			close(gone)
		case "/long":
			io.WriteString(w, strings.Repeat("x", 3000))
		case "/header":
			w.Header().Set("X", strings.Repeat("x", 100<<10))
		}
	})
	for path, want := range map[string]struct {
		verdict inbox.Verdict
		excerpt int
	}{
		"/bomb": {inbox.Done, 2048}, "/endless": {inbox.Done, 2048}, "/slow": {inbox.Done, 5}, "/long": {inbox.Done, 2048},
		"/empty": {inbox.Done, 0}, "/header": {inbox.NoAnswer, 0},
	} {
		start := time.Now()
		a := newForwarder(t, s.URL+path, nil).Forward(t.Context(), newDelivery("m"))
		if a.Verdict != want.verdict || len(a.Excerpt) != want.excerpt {
			t.Errorf("%s: got %s with %d bytes (%v), want %s with %d", path, a.Verdict, len(a.Excerpt), a.Err, want.verdict, want.excerpt)
		}
		if took := time.Since(start); took > 4*time.Second {
			t.Errorf("%s: took %v", path, took)
		}
	}
	<-gone
}

// rawServer answers each connection with what answer returns for its request.
func rawServer(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); serve(c) }()
		}
	}()
	return "http://" + l.Addr().String()
}

// readHead reads a request up to its body.
func readHead(c net.Conn) {
	r := bufio.NewReaderSize(c, 16)
	for {
		line, err := r.ReadString('\n')
		if err != nil || line == "\r\n" {
			return
		}
	}
}

func TestAnswersThatAreNone(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{
		"silence":        "",
		"SMTP":           "220 mail.example.com ESMTP\r\n",
		"half a header":  "HTTP/1.1 200 OK\r\nContent-Le",
		"half a status":  "HTTP/1.1 20",
		"two lengths":    "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
		"informational":  "HTTP/1.1 103 Early Hints\r\n\r\n",
		"TLS alert":      "\x15\x03\x01\x00\x02\x02\x46",
		"HTTP/2 preface": "\x00\x00\x12\x04\x00\x00\x00\x00\x00",
	} {
		url := rawServer(t, func(c net.Conn) { readHead(c); io.WriteString(c, answer) })
		d := newDelivery("m")
		a := newForwarder(t, url, nil).Forward(t.Context(), d)
		if a.Verdict != inbox.NoAnswer || d.Requests != 1 {
			t.Errorf("%s: got %s (%v) and %d requests, want no_answer and 1", name, a.Verdict, a.Err, d.Requests)
		}
		if len(answer) > 9 && strings.Contains(fmt.Sprint(a.Err), answer[:9]) {
			t.Errorf("%s: the error quotes the answer: %v", name, a.Err)
		}
	}
}

func TestInformationalAnswersAreSkipped(t *testing.T) {
	t.Parallel()
	url := rawServer(t, func(c net.Conn) {
		readHead(c)
		io.WriteString(c, "HTTP/1.1 100 Continue\r\n\r\n"+strings.Repeat("HTTP/1.1 102 Processing\r\n\r\n", 50)+
			"HTTP/1.1 204 No Content\r\n\r\n")
	})
	if a := newForwarder(t, url, nil).Forward(t.Context(), newDelivery("m")); a.Verdict != inbox.Done || a.Status != 204 {
		t.Errorf("got %s, status %d (%v); want done, 204", a.Verdict, a.Status, a.Err)
	}
}

// A handler that refuses a large body before it has read it, and hangs up,
// breaks our writing; its answer counts all the same.
func TestAnswerBeforeTheBodyIsSentCounts(t *testing.T) {
	t.Parallel()
	for name, linger := range map[string]int{"close": -1, "reset": 0} {
		url := rawServer(t, func(c net.Conn) {
			readHead(c)
			io.WriteString(c, "HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
			if linger == 0 {
				// Let the answer arrive before the reset.
				io.CopyN(io.Discard, c, 1<<20)
				c.(*net.TCPConn).SetLinger(0)
			}
		})
		f := newForwarder(t, url, nil)
		for range 10 {
			d := newDelivery("m")
			d.Body = make([]byte, 8<<20)
			if a := f.Forward(t.Context(), d); a.Status != 413 || a.Verdict != inbox.Refused {
				t.Errorf("%s: got %s, status %d (%v); want refused, 413", name, a.Verdict, a.Status, a.Err)
			}
		}
	}
}

// Not t.Parallel: it sets the environment.
func TestProxyOfTheEnvironmentIsNotUsed(t *testing.T) {
	var proxied atomic.Int64
	proxy := newServer(t, func(http.ResponseWriter, *http.Request) { proxied.Add(1) })
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY"} {
		t.Setenv(name, proxy.URL)
	}
	for _, url := range []string{"http://nobody.invalid/", "https://nobody.invalid/"} {
		if a := newForwarder(t, url, nil).Forward(t.Context(), newDelivery("m")); a.Verdict != inbox.Unreachable {
			t.Errorf("%s: got %s (%v), want unreachable", url, a.Verdict, a.Err)
		}
	}
	if n := proxied.Load(); n != 0 {
		t.Errorf("the proxy got %d requests, want 0", n)
	}
}

// The application closes its idle connections whenever it likes.
func TestKeepAliveRaceIsRepeatedOnceAndNotCounted(t *testing.T) {
	t.Parallel()
	var conns, requests atomic.Int64
	// Each connection serves one request, says that it stays, and goes when the
	// next request arrives.
	url := rawServer(t, func(c net.Conn) {
		conns.Add(1)
		r := bufio.NewReader(c)
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		requests.Add(1)
		io.Copy(io.Discard, req.Body)
		io.WriteString(c, "HTTP/1.1 204 No Content\r\n\r\n")
		r.Peek(1)
	})
	f := newForwarder(t, url, nil)
	for i := range 50 {
		d := newDelivery("m")
		if a := f.Forward(t.Context(), d); a.Verdict != inbox.Done {
			t.Errorf("request %d: got %s (%v), want done", i, a.Verdict, a.Err)
		}
		if i%2 == 1 && d.Requests != 2 {
			t.Errorf("request %d: got %d requests, want 2: the connection was dead", i, d.Requests)
		}
	}
	if requests.Load() != 50 {
		t.Errorf("got %d requests, want 50", requests.Load())
	}
}

// A message that kills the application must end parked, also where it arrives on
// a kept-alive connection and nobody is there for the repetition.
func TestDeathOnAKeptConnectionCounts(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		defer l.Close()
		r := bufio.NewReader(c)
		for i := range 2 {
			req, err := http.ReadRequest(r)
			if err != nil {
				t.Error(err)
				return
			}
			io.Copy(io.Discard, req.Body)
			if i == 0 {
				io.WriteString(c, "HTTP/1.1 204 No Content\r\n\r\n")
			}
		}
	}()
	f := newForwarder(t, "http://"+l.Addr().String(), nil)
	if a := f.Forward(t.Context(), newDelivery("a")); a.Verdict != inbox.Done {
		t.Fatalf("got %s (%v), want done", a.Verdict, a.Err)
	}
	d := newDelivery("b")
	if a := f.Forward(t.Context(), d); a.Verdict != inbox.NoAnswer || d.Requests != 1 {
		t.Errorf("got %s (%v) and %d requests, want no_answer and 1", a.Verdict, a.Err, d.Requests)
	}
	if a := f.Forward(t.Context(), d); a.Verdict != inbox.Unreachable || d.Requests != 1 {
		t.Errorf("afterwards: got %s (%v) and %d requests, want unreachable and 1", a.Verdict, a.Err, d.Requests)
	}
}

func TestConnectionsAreUsedAgain(t *testing.T) {
	t.Parallel()
	var conns atomic.Int64
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		io.WriteString(w, strings.Repeat("x", 10000))
	}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			conns.Add(1)
		}
	}
	s.Start()
	defer s.Close()
	f := newForwarder(t, s.URL, func(o *Options) { o.Concurrency = 4 })
	done := make(chan struct{})
	for range 4 {
		go func() {
			defer func() { done <- struct{}{} }()
			for range 200 {
				if a := f.Forward(context.Background(), newDelivery("m")); a.Verdict != inbox.Done {
					t.Errorf("got %s (%v), want done", a.Verdict, a.Err)
				}
			}
		}()
	}
	for range 4 {
		<-done
	}
	if n := conns.Load(); n > 12 {
		t.Errorf("got %d connections for 800 requests, want about 4", n)
	}
}

func TestTargets(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"http://127.0.0.1:8080/messages":            "http://127.0.0.1:8080/messages",
		"https://user:secret@app/x?y=z":             "https://app/x",
		"http+unix:///run/app.sock:/messages":       "http+unix:///run/app.sock:/messages",
		"http+unix:///run/app.sock":                 "http+unix:///run/app.sock:/",
		"http+unix:///run/app.sock:/messages?a=b:c": "http+unix:///run/app.sock:/messages?a=b:c",
		"ftp://x":                      "",
		"/messages":                    "",
		"http://":                      "",
		"http://x/#y":                  "",
		"http+unix://run/app.sock:/x":  "",
		"http+unix:///run/app.sock:x":  "",
		"http://user:secret@ex ample/": "",
		"http://127.0.0.1:80a/":        "",
	} {
		got, err := parseTarget(in)
		switch {
		case want == "" && err == nil:
			t.Errorf("%s: got %s, want an error", in, got)
		case want != "" && (err != nil || got.String() != want):
			t.Errorf("%s: got %s (%v), want %s", in, got, err, want)
		case err != nil && strings.Contains(err.Error(), "secret"):
			t.Errorf("%s: the error shows the password: %v", in, err)
		}
	}
}

func TestTokenIsReadAgain(t *testing.T) {
	t.Parallel()
	file := t.TempDir() + "/token"
	write := func(s string) {
		if err := os.WriteFile(file, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("one\n")
	var got atomic.Value
	s := newServer(t, func(_ http.ResponseWriter, r *http.Request) { got.Store(r.Header.Get("Authorization")) })
	f := newForwarder(t, s.URL, func(o *Options) { o.TokenFile = file })
	f.Forward(t.Context(), newDelivery("m"))
	if got.Load() != "Bearer one" {
		t.Errorf("got %q, want Bearer one", got.Load())
	}
	write("two")
	f.auth.readAt = time.Time{}
	f.Forward(t.Context(), newDelivery("m"))
	if got.Load() != "Bearer two" {
		t.Errorf("got %q, want Bearer two", got.Load())
	}
	for _, bad := range []string{"", "a b", "a\nb", "ü"} { // in the middle of a change
		write(bad)
		f.auth.readAt = time.Time{}
		f.Forward(t.Context(), newDelivery("m"))
		if got.Load() != "Bearer two" {
			t.Errorf("token %q: got %q, want the former one", bad, got.Load())
		}
	}
	r, err := f.Request(newDelivery("m"))
	if err != nil || r.Header.Get("Authorization") != "<redacted>" || r.Header.Get("Idempotency-Key") != "m" {
		t.Errorf("Request: got %v (%v), want the token redacted", r.Header, err)
	}
}
