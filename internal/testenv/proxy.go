package testenv

import (
	"errors"
	"io"
	"net"
	"sync"
)

// Proxy passes TCP connections on to one target and breaks them on demand. Its
// methods are safe for concurrent use.
type Proxy struct {
	Addr string // where it listens, 127.0.0.1:PORT

	target   string
	listener net.Listener
	wg       sync.WaitGroup

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	flow   chan struct{} // closed while bytes may pass
	closed bool
}

// NewProxy starts a proxy to target, a host and port. The caller must Close it.
func NewProxy(target string) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	open := make(chan struct{})
	close(open)
	p := &Proxy{
		Addr:     l.Addr().String(),
		target:   target,
		listener: l,
		conns:    map[net.Conn]struct{}{},
		flow:     open,
	}
	p.wg.Go(p.accept)
	return p, nil
}

// Cut drops every connection. New ones are accepted as before.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut()
}

func (p *Proxy) cut() {
	for c := range p.conns {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // a reset, not an orderly end
		}
		_ = c.Close()
	}
	clear(p.conns)
}

// Pause makes the proxy a black hole: connections stand, new ones are
// accepted, and no byte passes in either direction until Resume.
func (p *Proxy) Pause() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.flow:
		p.flow = make(chan struct{})
	default: // paused already
	}
}

// Resume undoes Pause; what was held back passes now.
func (p *Proxy) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.resume()
}

func (p *Proxy) resume() {
	select {
	case <-p.flow:
	default:
		close(p.flow)
	}
}

// Close drops every connection and stops listening: new connections are
// refused.
func (p *Proxy) Close() error {
	p.mu.Lock()
	p.closed = true
	p.cut()
	p.resume()
	p.mu.Unlock()
	err := p.listener.Close()
	p.wg.Wait()
	return err
}

func (p *Proxy) accept() {
	for {
		in, err := p.listener.Accept()
		if err != nil {
			return
		}
		if p.track(in) {
			p.wg.Go(func() { p.serve(in) })
		}
	}
}

func (p *Proxy) serve(in net.Conn) {
	defer p.drop(in)
	p.awaitFlow()
	out, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	if !p.track(out) {
		return
	}
	defer p.drop(out)
	var wg sync.WaitGroup
	wg.Go(func() { p.pass(out, in) })
	p.pass(in, out)
	wg.Wait()
}

// pass copies until src ends, and then ends dst's side of it.
func (p *Proxy) pass(dst, src net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := src.Read(buf)
		p.awaitFlow()
		if n > 0 {
			if _, werr := dst.Write(buf[:n]); werr != nil {
				_ = src.Close()
				return
			}
		}
		if errors.Is(err, io.EOF) {
			if tcp, ok := dst.(*net.TCPConn); ok {
				_ = tcp.CloseWrite()
			}
			return
		}
		if err != nil {
			_ = dst.Close()
			return
		}
	}
}

func (p *Proxy) awaitFlow() {
	p.mu.Lock()
	flow := p.flow
	p.mu.Unlock()
	<-flow
}

// track registers a connection for Cut; false, and closed, after Close.
func (p *Proxy) track(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = c.Close()
		return false
	}
	p.conns[c] = struct{}{}
	return true
}

func (p *Proxy) drop(c net.Conn) {
	p.mu.Lock()
	delete(p.conns, c)
	p.mu.Unlock()
	_ = c.Close()
}
