//go:build unix

package forward

import (
	"errors"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// canPeek says that isQuiet works.
const canPeek = true

// isQuiet reports whether nothing has come in on c since its last answer: no
// byte, and not its end.
func isQuiet(c net.Conn) bool {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return false
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return false
	}
	var n int
	var b [1]byte
	if rc.Control(func(fd uintptr) {
		n, _, err = unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	}) != nil {
		return false
	}
	return n <= 0 && errors.Is(err, unix.EAGAIN)
}
