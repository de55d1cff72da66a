package testenv

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// startTimeout is generous: the machines of CI are slow and shared.
const startTimeout = 90 * time.Second

// Options say how a private server is to be started. The zero value will do.
type Options struct {
	// Dir is the directory to put the server's own directory into; empty means
	// the system's temporary directory.
	Dir string
	// Port is the port on 127.0.0.1, the same across restarts; 0 chooses one.
	Port int
	// Config holds more lines for rabbitmq.conf or postgresql.conf.
	Config string
	// Advanced is the whole of RabbitMQ's advanced.config, in Erlang terms:
	// some settings (channel_tick_interval) are refused anywhere else.
	Advanced string
}

// child is one process of ours and its end.
type child struct {
	cmd  *exec.Cmd
	done chan struct{} // closed once the process was waited for
}

// startChild starts cmd with its output appended to the file log. It must be
// one process that stays itself (exec, no shell in between), or signals would
// reach the shell alone.
func startChild(cmd *exec.Cmd, log string) (*child, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	// A group of its own, so that an interrupt typed at the terminal does not
	// stop the servers before the tests that use them.
	cmd.SysProcAttr.Setpgid = true
	dieWithParent(cmd.SysProcAttr)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c := &child{cmd: cmd, done: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // cmd.ProcessState keeps how it ended
		close(c.done)
	}()
	return c, nil
}

func (c *child) running() bool {
	if c == nil {
		return false
	}
	select {
	case <-c.done:
		return false
	default:
		return true
	}
}

// signal reaches the process and everything it started, parents first so that
// a stopped parent cannot start more.
func (c *child) signal(sig syscall.Signal) error {
	if !c.running() {
		return errors.New("the server is not running")
	}
	pids := []int{c.cmd.Process.Pid}
	for i := 0; i < len(pids); i++ {
		if err := syscall.Kill(pids[i], sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("sending %v to process %d: %w", sig, pids[i], err)
		}
		pids = append(pids, childrenOf(pids[i])...)
	}
	return nil
}

// kill ends the process and its descendants with SIGKILL and returns when all
// are gone. Killing what does not run is not an error.
func (c *child) kill() error {
	if !c.running() {
		return nil
	}
	// Stopped first: a running parent could answer the death of one child by
	// starting another, and orphans can no longer be found.
	pids := []int{c.cmd.Process.Pid}
	for i := 0; i < len(pids); i++ {
		_ = syscall.Kill(pids[i], syscall.SIGSTOP)
		pids = append(pids, childrenOf(pids[i])...)
	}
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	<-c.done
	deadline := time.Now().Add(10 * time.Second)
	for _, pid := range pids[1:] {
		for alive(pid) {
			if time.Now().After(deadline) {
				return fmt.Errorf("process %d survives SIGKILL", pid)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	return nil
}

// awaitReady calls try until it succeeds, the process ends, or time is up. The
// error ends with what the server logged last.
func (c *child) awaitReady(log string, try func() error) error {
	deadline := time.Now().Add(startTimeout)
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-c.done:
			return fmt.Errorf("the server ended (%v):\n%s", c.cmd.ProcessState, tail(log, 100))
		case <-time.After(50 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the server does not answer after %v: %w:\n%s", startTimeout, err, tail(log, 100))
		}
	}
}

// childrenOf lists the children of a process; nil where there is no /proc.
func childrenOf(pid int) []int {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	var pids []int
	for _, path := range stats {
		child, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			continue
		}
		if _, ppid := procStat(child); ppid == pid {
			pids = append(pids, child)
		}
	}
	return pids
}

// alive reports whether pid is a process that still runs: a zombie whose
// parent has not looked is dead.
func alive(pid int) bool {
	state, _ := procStat(pid)
	return state != 0 && state != 'Z' && state != 'X'
}

func procStat(pid int) (state byte, ppid int) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0
	}
	// pid (name) state ppid …, where the name may hold anything.
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) < 2 {
		return 0, 0
	}
	ppid, _ = strconv.Atoi(string(fields[1]))
	return fields[0][0], ppid
}

// freePorts returns n free ports of 127.0.0.1. They lie below the range from
// which systems take the ports of outgoing connections: a port in that range
// could be gone when a killed server wants it back.
func freePorts(n int) ([]int, error) {
	ports := make([]int, 0, n)
	for range 1000 {
		port := 10000 + rand.IntN(22000)
		l, err := net.Listen("tcp", localAddr(port))
		if err != nil {
			continue
		}
		defer l.Close()
		if ports = append(ports, port); len(ports) == n {
			return ports, nil
		}
	}
	return nil, errors.New("found no free port on 127.0.0.1")
}

func localAddr(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

func tail(path string, lines int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
