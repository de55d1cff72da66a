//go:build failpoint

package inbox

import (
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

var (
	failpointName, failpointAt = parseFailpoint(os.Getenv("INBOXD_FAILPOINT"))
	failpointHits              atomic.Int64
)

func parseFailpoint(s string) (name string, at int64) {
	name, n, _ := strings.Cut(s, ":")
	at, err := strconv.ParseInt(n, 10, 64)
	if err != nil {
		at = 1
	}
	return name, at
}

// Failpoint kills this process with SIGKILL at the n-th passing of the point
// that INBOXD_FAILPOINT=NAME:N names. It exists only in binaries built with the
// tag failpoint, for the tests that crash the daemon between two steps.
func Failpoint(name string) {
	if name == failpointName && failpointHits.Add(1) == failpointAt {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // the signal is on its way; not one more step
	}
}
