package forward

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync"
	"time"
)

// sender sends one request and reads its answer. It is the seam behind which
// the HTTP client can be exchanged.
type sender interface {
	// send sends head and body, which it must not change, and returns when the
	// answer is there, life is done or deadline has passed. It never repeats a
	// request. fresh asks for a connection that no other request has used.
	send(life context.Context, deadline time.Time, head []field, body []byte, fresh bool) reply
	// close closes idle connections.
	close()
}

// reply is what became of one request.
type reply struct {
	reached  bool // there was a connection, so something may have been written
	reused   bool // the connection had carried requests before
	answered bool // at least one byte of an answer came
	err      error

	// Where err is nil:
	status     int
	action     string // Inbox-Action
	retryAfter string
	location   string
	excerpt    []byte
}

// stale reports whether the request met a kept-alive connection that the other
// side closes at the same moment. The application may yet have read it.
func (r *reply) stale() bool { return r.err != nil && r.reused && !r.answered }

const (
	maxAnswer  = 64 << 10
	maxExcerpt = 2 << 10
	// The status decides; the rest of a slow body is not worth a slot.
	maxAnswerTime = time.Second
	// Shorter than what common servers keep idle connections for (gunicorn 2 s,
	// Node and uvicorn 5 s), so that we close first and no request races with
	// the other side's close. A new connection to a neighbour costs little.
	idleTimeout = 1500 * time.Millisecond
)

// newSender returns the lean sender where it can serve the target, net/http
// otherwise. idle is how many connections it keeps.
func newSender(t target, d *dialer, idle int) sender {
	if !canPeek || netHTTPOnly || t.url.Scheme != "http" || !isPlainHost(t.url.Host) {
		return newNetSender(t, d, idle)
	}
	return newPlainSender(t, d, idle)
}

// netHTTPOnly is set by tests that run everything a second time with net/http.
var netHTTPOnly bool

// netSender sends by net/http, whose Transport follows no redirects.
type netSender struct {
	url   *url.URL
	kept  *http.Transport
	fresh *http.Transport
}

func newNetSender(t target, d *dialer, idle int) *netSender {
	return &netSender{
		url:   t.url,
		kept:  newTransport(d, idle),
		fresh: newTransport(d, 0),
	}
}

// newTransport returns a transport for HTTP/1.1 that takes nothing from the
// environment. idle is how many connections it keeps, 0 means that each request
// has its own.
func newTransport(d *dialer, idle int) *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Transport{
		Proxy:                  nil, // never from the environment
		DialContext:            d.dial,
		DialTLSContext:         d.dialTLS,
		Protocols:              protocols,
		DisableCompression:     true, // an answer is never inflated
		DisableKeepAlives:      idle == 0,
		MaxIdleConns:           idle,
		MaxIdleConnsPerHost:    idle,
		IdleConnTimeout:        idleTimeout,
		MaxResponseHeaderBytes: maxAnswer,
	}
}

func (s *netSender) close() { s.kept.CloseIdleConnections() }

func (s *netSender) send(life context.Context, deadline time.Time, head []field, body []byte, fresh bool) reply {
	var r reply
	var conn net.Conn
	ctx, cancel := context.WithDeadline(life, deadline)
	defer cancel()
	// The hooks run before RoundTrip returns or not at all; the mutex is for a
	// first byte that arrives while RoundTrip gives up.
	var mu sync.Mutex
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(i httptrace.GotConnInfo) {
			mu.Lock()
			r.reached, r.reused, conn = true, i.Reused, i.Conn
			mu.Unlock()
		},
		GotFirstResponseByte: func() {
			mu.Lock()
			r.answered = true
			mu.Unlock()
		},
	})
	transport := s.kept
	if fresh {
		transport = s.fresh
		s.kept.CloseIdleConnections() // the others are as stale
	}
	resp, err := transport.RoundTrip(newRequest(ctx, s.url, head, body))
	mu.Lock()
	out, via := r, conn
	mu.Unlock()
	if err != nil {
		out.err = err
		if untouched(via) {
			out.reached = false
		}
		return out
	}
	defer resp.Body.Close()
	out.answered = true
	out.status = resp.StatusCode
	out.action = resp.Header.Get("Inbox-Action")
	out.retryAfter = resp.Header.Get("Retry-After")
	out.location = resp.Header.Get("Location")
	if resp.StatusCode != http.StatusSwitchingProtocols {
		out.excerpt = readAnswer(resp, cancel)
	}
	return out
}

// newRequest builds the request. It has no GetBody on purpose: with one, the
// transport replays a request that carries Idempotency-Key by itself, and
// attempts go uncounted (golang/go#19943).
func newRequest(ctx context.Context, u *url.URL, head []field, body []byte) *http.Request {
	r := &http.Request{
		Method:        http.MethodPost,
		URL:           u,
		Host:          u.Host,
		Proto:         "HTTP/1.1",
		ProtoMajor:    1,
		ProtoMinor:    1,
		Header:        make(http.Header, len(head)),
		ContentLength: int64(len(body)),
	}
	values := make([]string, len(head)) // one allocation for all
	for i, f := range head {
		values[i] = f.value
		r.Header[f.name] = values[i : i+1 : i+1]
	}
	if len(body) > 0 {
		r.Body = io.NopCloser(bytes.NewReader(body))
	} else if key, ok := r.Header["Idempotency-Key"]; ok {
		// A request without a body is replayed even without GetBody, and a body
		// of unknown length would be sent in chunks. The transport looks for
		// the canonical name only; HTTP does not care.
		delete(r.Header, "Idempotency-Key")
		r.Header["idempotency-key"] = key
	}
	return r.WithContext(ctx)
}

var answers = sync.Pool{New: func() any { return new([4 << 10]byte) }}

// readAnswer reads the answer's body as far as it is worth it, so that the
// connection can be used again, and returns its start. Whatever fails here, the
// status has decided.
func readAnswer(resp *http.Response, cancel context.CancelFunc) []byte {
	if resp.ContentLength == 0 {
		return nil
	}
	t := time.AfterFunc(maxAnswerTime, cancel)
	defer t.Stop()
	buf := answers.Get().(*[4 << 10]byte)
	defer answers.Put(buf)
	n, err := io.ReadFull(resp.Body, buf[:])
	var excerpt []byte
	if n > 0 {
		excerpt = bytes.Clone(buf[:min(n, maxExcerpt)])
	}
	for read := n; err == nil && read < maxAnswer; {
		n, err = resp.Body.Read(buf[:])
		read += n
	}
	return excerpt
}
