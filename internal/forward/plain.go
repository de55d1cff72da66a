package forward

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"sync"
	"time"
)

// plainSender speaks HTTP/1.1 itself, over TCP or a unix socket without TLS: one
// buffer, one write and as a rule one read for each request, on the goroutine of
// the caller. net/http takes more than twice the time for the same, most of it
// for what no request of ours uses: two goroutines for each connection, header
// maps, redirects, proxies.
type plainSender struct {
	dialer *dialer
	addr   string
	start  string // of every request: its line and Host
	keep   int    // idle connections at most

	mu    sync.Mutex
	idle  []*plainConn // the one used last at the end
	sweep *time.Timer  // runs while there are idle connections
}

func newPlainSender(t target, d *dialer, keep int) *plainSender {
	return &plainSender{
		dialer: d,
		addr:   hostPort(t.url),
		start:  "POST " + t.url.RequestURI() + " HTTP/1.1\r\nHost: " + t.url.Host + "\r\n",
		keep:   keep,
	}
}

// isPlainHost reports whether host can stand in Host as it is. The others (not
// ASCII, or with a zone) are left to net/http.
func isPlainHost(host string) bool {
	for i := range len(host) {
		if c := host[i]; c <= ' ' || c > '~' || c == '%' {
			return false
		}
	}
	return host != ""
}

func (s *plainSender) send(life context.Context, deadline time.Time, head []field, body []byte, fresh bool) (r reply) {
	if fresh {
		s.close() // the others are as stale
	}
	c, reused := s.take()
	if c == nil {
		var err error
		if c, err = s.connect(life, deadline); err != nil {
			return reply{err: err}
		}
	}
	r.reached, r.reused = true, reused
	if c.roundTrip(&r, deadline, s.start, head, body) {
		s.put(c)
	} else {
		c.close()
	}
	return r
}

func (s *plainSender) connect(life context.Context, deadline time.Time) (*plainConn, error) {
	ctx, cancel := context.WithDeadline(life, deadline)
	defer cancel()
	raw, err := s.dialer.dialRaw(ctx, s.addr)
	if err != nil {
		return nil, err
	}
	return newPlainConn(life, raw), nil
}

// take returns the idle connection that was used last, or nil. What the other
// side has closed, or sent unasked, costs its connection here: the rest of some
// other answer must not be taken for the answer to this request.
func (s *plainSender) take() (c *plainConn, reused bool) {
	for {
		s.mu.Lock()
		n := len(s.idle) - 1
		if n < 0 {
			s.mu.Unlock()
			return nil, false
		}
		c, s.idle = s.idle[n], s.idle[:n]
		s.mu.Unlock()
		if time.Since(c.used) < idleTimeout && c.peek.isQuiet() {
			return c, true
		}
		c.close()
	}
}

func (s *plainSender) put(c *plainConn) {
	c.used = time.Now()
	s.mu.Lock()
	full := len(s.idle) >= s.keep
	if !full {
		s.idle = append(s.idle, c)
		if s.sweep == nil {
			s.sweep = time.AfterFunc(idleTimeout, s.closeOld)
		}
	}
	s.mu.Unlock()
	if full {
		c.close()
	}
}

// closeOld closes what has been idle for too long: the other side must not be
// the one who closes.
func (s *plainSender) closeOld() {
	s.mu.Lock()
	n := 0
	for n < len(s.idle) && time.Since(s.idle[n].used) >= idleTimeout {
		n++
	}
	old := append([]*plainConn(nil), s.idle[:n]...)
	s.idle = append(s.idle[:0], s.idle[n:]...)
	if len(s.idle) > 0 {
		s.sweep.Reset(idleTimeout - time.Since(s.idle[0].used))
	} else {
		s.sweep = nil
	}
	s.mu.Unlock()
	for _, c := range old {
		c.close()
	}
}

func (s *plainSender) close() {
	s.mu.Lock()
	old := s.idle
	s.idle = nil
	s.mu.Unlock()
	for _, c := range old {
		c.close()
	}
}

const (
	// Up to so much is written before the answer is looked for: the kernel takes
	// it whether or not the other side reads.
	maxOneWrite = 32 << 10
	// maxKeptBuffer of a connection's memory outlives a request.
	maxKeptBuffer = 64 << 10
	// writeGrace is how long an application that answers first may take to read
	// the rest of the request before its connection is given up.
	writeGrace = 50 * time.Millisecond
)

// plainConn is one connection. It belongs to one request at a time.
type plainConn struct {
	raw  net.Conn
	peek *peeker
	in   answerReader
	out  []byte
	used time.Time // when its last answer was complete
	free func() bool
}

func newPlainConn(life context.Context, raw net.Conn) *plainConn {
	c := &plainConn{raw: raw, peek: newPeeker(raw), in: newAnswerReader(raw)}
	// The end of the process's grace ends what is under way.
	c.free = context.AfterFunc(life, func() { _ = raw.Close() })
	return c
}

func (c *plainConn) close() {
	c.free()
	_ = c.raw.Close()
}

// roundTrip sends a request and reads its answer into r. It reports whether the
// connection can carry another one.
func (c *plainConn) roundTrip(r *reply, deadline time.Time, start string, head []field, body []byte) (reusable bool) {
	if r.err = c.raw.SetDeadline(deadline); r.err != nil {
		r.reached = false
		return false
	}
	c.out = appendHead(c.out[:0], start, head, len(body))
	if len(c.out)+len(body) > maxOneWrite {
		return c.largeRoundTrip(r, deadline, body)
	}
	c.out = append(c.out, body...)
	n, err := c.raw.Write(c.out)
	if err != nil && n == 0 {
		r.reached, r.err = false, err
		return false
	}
	// Another error of the write is not looked at: an application that answers
	// before it has read everything, and closes, makes our writing fail. The
	// reading decides.
	return c.in.read(r, c.raw, deadline) && err == nil
}

// largeRoundTrip writes beside the reading: an application may answer before it
// has read a large body, or instead of it.
func (c *plainConn) largeRoundTrip(r *reply, deadline time.Time, body []byte) (reusable bool) {
	type written struct {
		n   int64
		err error
	}
	wrote := make(chan written, 1)
	buffers := net.Buffers{c.out, body}
	go func() {
		n, err := buffers.WriteTo(c.raw)
		wrote <- written{n, err}
	}()
	reusable = c.in.read(r, c.raw, deadline)
	if r.err != nil {
		_ = c.raw.Close() // ends the writing
	}
	grace := time.NewTimer(writeGrace)
	defer grace.Stop()
	var w written
	select {
	case w = <-wrote:
	case <-grace.C:
		_ = c.raw.Close()
		w = <-wrote
	}
	if r.err != nil && w.err != nil && w.n == 0 {
		r.reached = false
	}
	if cap(c.out) > maxKeptBuffer {
		c.out = nil
	}
	return reusable && w.err == nil
}

// appendHead appends the request up to its body.
func appendHead(b []byte, start string, head []field, length int) []byte {
	b = append(b, start...)
	for _, f := range head {
		b = append(b, f.name...)
		b = append(b, ": "...)
		b = append(b, f.value...)
		b = append(b, "\r\n"...)
	}
	b = append(b, "Content-Length: "...)
	b = strconv.AppendInt(b, int64(length), 10)
	return append(b, "\r\n\r\n"...)
}

// errMalformed says that what came is no answer in HTTP/1.
var errMalformed = errors.New("malformed answer")

func unexpectedEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
