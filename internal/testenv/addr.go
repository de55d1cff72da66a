package testenv

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
)

var handedOut sync.Map // addresses

// FreeAddr returns an address of the loopback on which nobody listens. No other
// call in this process gets the same one, and it lies below the ports that the
// kernel gives to connections by itself, so that none of those takes it meanwhile.
func FreeAddr(t testing.TB) string {
	t.Helper()
	const from, to, tries = 11000, 31000, 1000
	for range tries {
		addr := fmt.Sprintf("127.0.0.1:%d", from+rand.IntN(to-from))
		l, err := net.Listen("tcp", addr)
		if err != nil {
			continue
		}
		_ = l.Close()
		if _, taken := handedOut.LoadOrStore(addr, nil); !taken {
			return addr
		}
	}
	t.Fatalf("no free port between %d and %d", from, to)
	return ""
}
