package main

import (
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// childAttr gives a child a group of its own, so that Ctrl-C reaches it through
// the demo alone, and has the kernel end it if the demo dies.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// stopWithGoRun asks for a SIGTERM when the parent dies, where that is `go run`:
// it does not pass a SIGTERM on, and would leave us and the broker behind.
func stopWithGoRun() {
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", os.Getppid()))
	if err == nil && strings.TrimSpace(string(comm)) == "go" {
		_ = unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(syscall.SIGTERM), 0, 0, 0)
	}
}
