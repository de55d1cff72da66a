package main

import (
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// stopWithGoRun asks for a SIGTERM when the parent dies, where that is `go run`:
// it does not pass a SIGTERM on, and would leave us and the servers behind.
func stopWithGoRun() {
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", os.Getppid()))
	if err == nil && strings.TrimSpace(string(comm)) == "go" {
		_ = unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(syscall.SIGTERM), 0, 0, 0)
	}
}
