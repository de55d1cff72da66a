package postgres

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

// process tells one process from every other: where it lives (this boot of this
// kernel, and the namespace of its process ID), its ID and when it was started.
type process struct {
	home    string // "" where it cannot be told
	pid     int
	started int64
}

func thisProcess() process {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return process{}
	}
	space, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return process{}
	}
	p := process{home: fmt.Sprintf("%s %s", bytes.TrimSpace(boot), space), pid: os.Getpid()}
	if p.started, err = startOf(p.pid); err != nil {
		return process{}
	}
	return p
}

// ended reports whether p, which lives where we live, is no more. Where that
// cannot be told it lives.
func (p process) ended() bool {
	started, err := startOf(p.pid)
	return errors.Is(err, fs.ErrNotExist) || err == nil && started != p.started
}

// startOf reads when a process was started, in ticks since the boot, or
// fs.ErrNotExist where there is no such process, or only its remains.
func startOf(pid int) (ticks int64, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The name in parentheses may hold anything.
	_, rest, _ := strings.Cut(string(b[bytes.LastIndexByte(b, ')')+1:]), " ")
	fields := strings.Fields(rest)
	const state, start = 0, 19
	if len(fields) <= start {
		return 0, fmt.Errorf("unknown form of /proc/%d/stat", pid)
	}
	if fields[state] == "Z" || fields[state] == "X" {
		return 0, fs.ErrNotExist
	}
	return strconv.ParseInt(fields[start], 10, 64)
}
