package main

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// clockTick is the unit of the times in /proc/PID/stat; it has been 1/100 s on
// every Linux that Go runs on.
const clockTick = 10 * time.Millisecond

type procInfo struct {
	ppid     int
	own      time.Duration
	children time.Duration // of children that have ended and were waited for
}

func readProc(pid int) (procInfo, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return procInfo{}, err
	}
	// The second field is the name in parentheses, which may hold anything.
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) < 15 {
		return procInfo{}, fmt.Errorf("/proc/%d/stat: too short", pid)
	}
	ticks := func(i int) time.Duration {
		n, _ := strconv.ParseInt(string(f[i]), 10, 64)
		return time.Duration(n) * clockTick
	}
	ppid, _ := strconv.Atoi(string(f[1]))
	return procInfo{ppid: ppid, own: ticks(11) + ticks(12), children: ticks(13) + ticks(14)}, nil
}

// cpuTime is the time that a process and all its descendants have used, those
// that have ended included: PostgreSQL works in a process for each connection.
func cpuTime(root int) time.Duration {
	if root == 0 {
		return 0
	}
	procs := map[int]procInfo{}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		if p, err := readProc(pid); err == nil {
			procs[pid] = p
		}
	}
	total := procs[root].own + procs[root].children
	tree := []int{root}
	for i := 0; i < len(tree); i++ {
		for pid, p := range procs {
			if p.ppid == tree[i] {
				tree = append(tree, pid)
				total += p.own + p.children
			}
		}
	}
	return total
}

// memory returns the resident set of a process in bytes: at its peak, and now.
func memory(pid int) (peak, now int64) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		kib, _ := strconv.ParseInt(f[1], 10, 64)
		switch f[0] {
		case "VmHWM:":
			peak = kib << 10
		case "VmRSS:":
			now = kib << 10
		}
	}
	return peak, now
}

// listenerPID finds the process that listens on a loopback address; 0 where it
// is not on this machine or not ours to see. Children share their parent's
// socket, so it is the oldest of the processes that have it.
func listenerPID(addr string) int {
	_, portText, err := net.SplitHostPort(addr)
	if err != nil {
		return 0
	}
	port, _ := strconv.Atoi(portText)
	var inodes []string
	for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		b, _ := os.ReadFile(file)
		for line := range strings.Lines(string(b)) {
			f := strings.Fields(line)
			const listening = "0A"
			if len(f) > 9 && f[3] == listening && localPort(f[1]) == port {
				inodes = append(inodes, "socket:["+f[9]+"]")
			}
		}
	}
	oldest := 0
	fds, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, fd := range fds {
		link, err := os.Readlink(fd)
		if err != nil || !slices.Contains(inodes, link) {
			continue
		}
		pid, _ := strconv.Atoi(strings.Split(fd, "/")[2])
		if oldest == 0 || pid < oldest {
			oldest = pid
		}
	}
	return oldest
}

// localPort reads the port of an address as /proc/net/tcp writes it.
func localPort(s string) int {
	_, p, _ := strings.Cut(s, ":")
	b, err := hex.DecodeString(p)
	if err != nil || len(b) != 2 {
		return -1
	}
	return int(b[0])<<8 | int(b[1])
}
