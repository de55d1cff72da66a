package forward

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
)

const otherSenderVar = "INBOXD_TEST_NET_HTTP"

func TestMain(m *testing.M) {
	netHTTPOnly = os.Getenv(otherSenderVar) != ""
	os.Exit(m.Run())
}

// Every test of this package holds for both ways to send.
func TestEverythingHoldsWithNetHTTP(t *testing.T) {
	t.Parallel()
	if netHTTPOnly {
		t.Skip("this is the second run")
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^Test", fmt.Sprint("-test.short=", testing.Short()))
	cmd.Env = append(os.Environ(), otherSenderVar+"=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("got %v, want every test to pass with net/http:\n%s", err, out)
	}
}

// answersOf serves one connection after the other, each with the given answers
// in turn: one for each request.
func answersOf(t *testing.T, answers ...string) (url string, conns *atomic.Int64) {
	conns = new(atomic.Int64)
	url = rawServer(t, func(c net.Conn) {
		conns.Add(1)
		in := bufio.NewReader(c)
		for _, a := range answers {
			req, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			io.Copy(io.Discard, req.Body)
			io.WriteString(c, a)
		}
		in.Peek(1) // until the client hangs up, or asks again
	})
	return url, conns
}

func TestAnswersAreReadByTheirFraming(t *testing.T) {
	t.Parallel()
	const ok = "HTTP/1.1 204 No Content\r\n\r\n"
	for name, c := range map[string]struct {
		answer, excerpt string
		reused          bool
	}{
		"no body":              {ok, "", true},
		"length":               {"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", "abc", true},
		"length twice":         {"HTTP/1.1 200 OK\r\nContent-Length: 3\r\ncontent-length:3\r\n\r\nabc", "abc", true},
		"bare line feeds":      {"HTTP/1.1 200 OK\nContent-Length: 3\n\nabc", "abc", true},
		"chunks":               {"HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n2\r\nab\r\n1;x=y\r\nc\r\n0\r\nX: y\r\n\r\n", "abc", true},
		"chunks and length":    {"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", "abc", false},
		"long line":            {"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 20000) + "\r\nContent-Length: 3\r\n\r\nabc", "abc", true},
		"folded line":          {"HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 3\r\n\r\nabc", "abc", true},
		"close":                {"HTTP/1.1 200 OK\r\nConnection: x, Close\r\nContent-Length: 3\r\n\r\nabc", "abc", false},
		"HTTP/1.0":             {"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nabc", "abc", false},
		"HTTP/1.0 that stays":  {"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 3\r\n\r\nabc", "abc", true},
		"more than the length": {"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcHTTP/1.1 500 No\r\n\r\n", "abc", false},
		"body where is none":   {"HTTP/1.1 204 No Content\r\nContent-Length: 3\r\n\r\nabc", "", false},
		"two answers":          {ok + "HTTP/1.1 500 Not this\r\n\r\n", "", false},
	} {
		url, conns := answersOf(t, c.answer, ok)
		f := newForwarder(t, url, nil)
		a := f.Forward(t.Context(), newDelivery("a"))
		if a.Verdict != inbox.Done || string(a.Excerpt) != c.excerpt {
			t.Errorf("%s: got %s with %q (%v), want done with %q", name, a.Verdict, a.Excerpt, a.Err, c.excerpt)
		}
		d := newDelivery("b")
		f.Forward(t.Context(), d)
		// net/http looks at what is left on a connection beside the next request.
		late := netHTTPOnly && !c.reused && !strings.Contains(c.answer, "Close") && !strings.Contains(c.answer, "HTTP/1.0")
		if reused := conns.Load() == 1; reused != c.reused && !late || d.Requests != 1 && !late {
			t.Errorf("%s: got a connection used again: %t, %d requests; want %t and 1", name, reused, d.Requests, c.reused)
		}
	}
}

// Bytes that nobody asked for are not the answer to the next request.
func TestUnaskedBytesCostTheConnection(t *testing.T) {
	t.Parallel()
	if netHTTPOnly {
		t.Skip("net/http looks at an idle connection beside the next request, and may be too late")
	}
	sent := make(chan struct{})
	var conns atomic.Int64
	url := rawServer(t, func(c net.Conn) {
		in := bufio.NewReader(c)
		first := conns.Add(1) == 1
		for {
			req, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			io.Copy(io.Discard, req.Body)
			if !first {
				io.WriteString(c, "HTTP/1.1 500 Failed\r\nContent-Length: 0\r\n\r\n")
				continue
			}
			io.WriteString(c, "HTTP/1.1 204 No Content\r\n\r\n")
			time.Sleep(50 * time.Millisecond) // behind the answer, not with it
			io.WriteString(c, "HTTP/1.1 204 No Content\r\n\r\n")
			close(sent)
		}
	})
	f := newForwarder(t, url, nil)
	if a := f.Forward(t.Context(), newDelivery("a")); a.Verdict != inbox.Done {
		t.Fatalf("got %s (%v), want done", a.Verdict, a.Err)
	}
	<-sent
	eventually(t, func() bool {
		a := f.Forward(t.Context(), newDelivery("b"))
		if a.Verdict == inbox.Done {
			t.Errorf("got done from an answer that came before the request")
		}
		return a.Verdict == inbox.Failed
	})
}

func TestIdleConnectionsAreClosedFirst(t *testing.T) {
	t.Parallel()
	closed := make(chan time.Duration, 1)
	url := rawServer(t, func(c net.Conn) {
		readHead(c)
		io.WriteString(c, "HTTP/1.1 204 No Content\r\n\r\n")
		begun := time.Now()
		io.Copy(io.Discard, c)
		closed <- time.Since(begun)
	})
	f := newForwarder(t, url, nil)
	f.Forward(t.Context(), newDelivery("m"))
	if d := <-closed; d > idleTimeout+2*time.Second {
		t.Errorf("got an idle connection closed after %v, want %v", d, idleTimeout)
	}
}

// FuzzAnswer: what the lean reader takes for an answer, net/http does too, with
// the same meaning.
func FuzzAnswer(f *testing.F) {
	for _, s := range []string{
		"HTTP/1.1 204 No Content\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
		"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 200\r\nConnection: close\r\n\r\nabc",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nA: b\r\n\r\n",
		"HTTP/1.1 503 x\r\nRetry-After: 7\r\nInbox-Action: park\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.1 200 OK\nContent-Length: 1\ncontent-length: 1\n\nx",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, wire []byte) {
		here, there := net.Pipe()
		defer here.Close()
		defer there.Close()
		var got reply
		a := newAnswerReader(bytes.NewReader(wire))
		clean := a.read(&got, here, time.Now().Add(time.Hour))
		if got.err != nil {
			return
		}
		in := bufio.NewReader(bytes.NewReader(wire))
		var want *http.Response
		for {
			var err error
			if want, err = http.ReadResponse(in, &http.Request{Method: http.MethodPost}); err != nil {
				t.Skipf("net/http does not take it: %v", err) // it is stricter in names
			}
			if want.StatusCode/100 != 1 || want.StatusCode == http.StatusSwitchingProtocols {
				break
			}
		}
		if got.status != want.StatusCode {
			t.Fatalf("got status %d, want %d", got.status, want.StatusCode)
		}
		if got.status == http.StatusSwitchingProtocols {
			return
		}
		for name, v := range map[string]string{"Inbox-Action": got.action, "Retry-After": got.retryAfter} {
			if w := want.Header.Get(name); v != w && !strings.HasPrefix(w, v) { // folded lines
				t.Fatalf("%s: got %q, want %q", name, v, w)
			}
		}
		body, err := io.ReadAll(io.LimitReader(want.Body, maxExcerpt))
		if err == nil && !bytes.Equal(got.excerpt, body) {
			t.Fatalf("got body %q, want %q", got.excerpt, body)
		}
		if clean && want.Close {
			t.Fatalf("got a connection to be used again, want it closed")
		}
	})
}

// A connection that the end of the grace has closed is nobody's.
func TestKillClosesIdleConnections(t *testing.T) {
	t.Parallel()
	gone := make(chan struct{})
	url := rawServer(t, func(c net.Conn) {
		readHead(c)
		io.WriteString(c, "HTTP/1.1 204 No Content\r\n\r\n")
		io.Copy(io.Discard, c)
		close(gone)
	})
	f := newForwarder(t, url, nil)
	f.Forward(context.Background(), newDelivery("m"))
	f.Kill()
	<-gone
}
