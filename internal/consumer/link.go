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
	in       io.Reader
	timeout  time.Duration
	sawEOF   atomic.Bool

	mu     sync.Mutex
	corked bool
	held   []byte
}

func newLink(conn, raw net.Conn, timeout time.Duration, repaired func(cut bool)) *link {
	return &link{Conn: conn, raw: raw, in: newFilter(conn, repaired), timeout: timeout}
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
func (l *link) sever() { _ = l.raw.Close() }

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
