//go:build unix

package forward

import (
	"errors"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// canPeek says that quietness can be told.
const canPeek = true

// peeker looks at what has come in on a connection, and leaves it there.
type peeker struct {
	raw  syscall.RawConn // nil: it cannot be looked at
	look func(fd uintptr)
	n    int
	err  error
	b    [1]byte
}

func newPeeker(c net.Conn) *peeker {
	p := new(peeker)
	p.look = func(fd uintptr) {
		p.n, _, p.err = unix.Recvfrom(int(fd), p.b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	}
	if sc, ok := c.(syscall.Conn); ok {
		p.raw, _ = sc.SyscallConn()
	}
	return p
}

// isQuiet reports whether nothing has come in since the last answer: no byte, and
// not the end.
func (p *peeker) isQuiet() bool {
	if p.raw == nil || p.raw.Control(p.look) != nil {
		return false
	}
	return p.n <= 0 && errors.Is(p.err, unix.EAGAIN)
}
