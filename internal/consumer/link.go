package consumer

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// link is the socket of one connection as amqp091-go sees it. What is read
// passes the frame filter; each write has a deadline, because the library
// writes without one and holds locks meanwhile that its own shutdown needs.
type link struct {
	net.Conn          // TLS, or raw itself
	raw      net.Conn // closing it ends every blocked call
	in       *filter
	intake   *intake      // nil where everything comes in
	span     atomic.Int64 // of the last read deadline
	timeout  time.Duration
	sawEOF   atomic.Bool

	mu     sync.Mutex
	corked bool
	held   []byte
}

func newLink(conn, raw net.Conn, timeout time.Duration, repaired func(cut bool)) *link {
	return &link{Conn: conn, raw: raw, in: newFilter(conn, repaired), timeout: timeout}
}

// count lets i decide about every body, from before the first read on.
func (l *link) count(i *intake) {
	l.intake, l.in.intake = i, i
	i.resumed = l.renewReadDeadline
}

// SetReadDeadline is called by the library at each frame: silence for three
// heartbeats is the end of the peer. The time in which we do not listen is not
// the peer's silence.
func (l *link) SetReadDeadline(t time.Time) error {
	l.span.Store(int64(time.Until(t)))
	return l.Conn.SetReadDeadline(t)
}

func (l *link) renewReadDeadline() {
	if d := time.Duration(l.span.Load()); d > 0 {
		_ = l.Conn.SetReadDeadline(time.Now().Add(d)) // an error comes at the read too
	}
}

func (l *link) Read(p []byte) (int, error) {
	n, err := l.in.Read(p)
	if errors.Is(err, io.EOF) {
		l.sawEOF.Store(true)
	}
	return n, err
}

func (l *link) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.corked {
		l.held = append(l.held, p...)
		return len(p), nil
	}
	return l.write(p)
}

func (l *link) write(p []byte) (int, error) {
	if err := l.Conn.SetWriteDeadline(time.Now().Add(l.timeout)); err != nil {
		return 0, err
	}
	return l.Conn.Write(p)
}

// cork holds back what is written until uncork, so that many small frames
// become one write.
func (l *link) cork() {
	l.mu.Lock()
	l.corked = true
	l.mu.Unlock()
}

func (l *link) uncork() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.corked = false
	if len(l.held) == 0 {
		return nil
	}
	_, err := l.write(l.held)
	l.held = l.held[:0]
	return err
}

// sever closes the socket without a word to the broker. Safe to call at any
// time, from any goroutine, more than once.
func (l *link) sever() {
	_ = l.raw.Close()
	if l.intake != nil {
		l.intake.close()
	}
}

// errNoAnswer marks a call that the broker did not answer in time.
var errNoAnswer = errors.New("no answer from the broker")

// watch runs an AMQP call. The calls of amqp091-go have no time limit of their
// own and the heartbeat does not cover the time before the first frame, so
// that the socket is closed under a call that takes longer than d.
func (l *link) watch(d time.Duration, what string, call func() error) error {
	var late atomic.Bool
	t := time.AfterFunc(d, func() {
		late.Store(true)
		l.sever()
	})
	err := call()
	t.Stop()
	switch {
	case err == nil:
		return nil
	case late.Load():
		return fmt.Errorf("%s: %w within %s", what, errNoAnswer, d)
	default:
		return fmt.Errorf("%s: %w", what, err)
	}
}
