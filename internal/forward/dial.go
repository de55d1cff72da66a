package forward

import (
	"context"
	"crypto/tls"
	"net"
	"sync/atomic"
	"time"
)

// dialer connects to one target, whatever address the transport asks for: a
// message has no say in it.
type dialer struct {
	target  target
	timeout time.Duration
	tls     *tlsFiles
}

func (d *dialer) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	c, err := d.dialRaw(ctx, addr)
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c}, nil
}

func (d *dialer) dialRaw(ctx context.Context, addr string) (net.Conn, error) {
	nd := net.Dialer{Timeout: d.timeout}
	network := "tcp"
	if d.target.socket != "" {
		network, addr = "unix", d.target.socket
	}
	return nd.DialContext(ctx, network, addr)
}

// dialTLS connects with the certificates that the files have now.
func (d *dialer) dialTLS(ctx context.Context, network, addr string) (net.Conn, error) {
	cfg, err := d.tls.config(d.target.url.Hostname())
	if err != nil {
		return nil, err
	}
	raw, err := d.dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	c := tls.Client(raw, cfg)
	if err := c.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, err
	}
	return c, nil
}

// knock connects and hangs up: the cheapest question whether somebody is there.
func (d *dialer) knock(ctx context.Context) error {
	c, err := d.dial(ctx, "tcp", hostPort(d.target.url))
	if err != nil {
		return err
	}
	return c.Close()
}

// conn hides write errors. A handler that answers before it has read the whole
// body, and closes, makes our writing fail, and net/http would then throw its
// answer away (golang/go#11745). With the error hidden, reading decides: the
// answer, or the end of the connection.
type conn struct {
	net.Conn
	wrote  atomic.Bool // at least one byte left us
	failed atomic.Bool
}

func (c *conn) Write(p []byte) (int, error) {
	if c.failed.Load() {
		return len(p), nil
	}
	n, err := c.Conn.Write(p)
	if n > 0 {
		c.wrote.Store(true)
	}
	if err != nil {
		c.failed.Store(true)
	}
	return len(p), nil
}

// untouched reports whether not one byte was written to c.
func untouched(c net.Conn) bool {
	own, ok := c.(*conn)
	return ok && own.failed.Load() && !own.wrote.Load()
}
