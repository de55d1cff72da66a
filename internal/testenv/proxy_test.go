package testenv

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// echoServer answers every byte with itself.
func echoServer(t *testing.T) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	return l.Addr().String()
}

func startProxy(t *testing.T) *Proxy {
	t.Helper()
	p, err := NewProxy(echoServer(t))
	must(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

func dial(t *testing.T, p *Proxy) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr)
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// echo sends one byte and waits for its return.
func echo(c net.Conn, limit time.Duration) error {
	if _, err := c.Write([]byte("x")); err != nil {
		return err
	}
	return receive(c, limit)
}

func receive(c net.Conn, limit time.Duration) error {
	_ = c.SetReadDeadline(time.Now().Add(limit))
	_, err := c.Read(make([]byte, 1))
	return err
}

func TestProxyCutDropsConnectionsAndTakesNewOnes(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	c := dial(t, p)
	must(t, echo(c, 5*time.Second))

	p.Cut()
	if err := receive(c, 5*time.Second); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read after Cut: got %v, want the end of the connection", err)
	}
	must(t, echo(dial(t, p), 5*time.Second))
}

func TestPausedProxyHoldsBytesBackUntilResumed(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	before := dial(t, p)
	must(t, echo(before, 5*time.Second))

	p.Pause()
	during := dial(t, p)
	for _, c := range []net.Conn{before, during} {
		if err := echo(c, 100*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("read from a black hole: got %v, want %v", err, os.ErrDeadlineExceeded)
		}
	}
	p.Resume()
	must(t, receive(before, 5*time.Second))
	must(t, receive(during, 5*time.Second))
}

func TestClosedProxyRefuses(t *testing.T) {
	t.Parallel()
	p := startProxy(t)
	c := dial(t, p)
	must(t, echo(c, 5*time.Second))
	p.Pause()
	must(t, p.Close())
	if err := receive(c, 5*time.Second); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read after Close: got %v, want the end of the connection", err)
	}
	if _, err := net.Dial("tcp", p.Addr); err == nil {
		t.Error("a closed proxy accepts")
	}
}
