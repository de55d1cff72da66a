package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// process is a child of this one: a program under test or the handler.
type process struct {
	name string
	cmd  *exec.Cmd
	log  string
	done chan struct{}
	err  error // of Wait; valid once done is closed
}

// startProcess starts a program with its error output in a file of dir. Where
// firstLine is not nil, it gets the first line of the standard output.
func startProcess(dir, name string, firstLine *string, path string, args ...string) (*process, error) {
	p := &process{name: name, log: filepath.Join(dir, name+".log"), done: make(chan struct{})}
	log, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.cmd = exec.Command(path, args...)
	p.cmd.Dir = dir
	p.cmd.Stdout, p.cmd.Stderr = log, log
	// Its own group, so that an interrupt reaches it through us alone.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	var out *bufio.Reader
	if firstLine != nil {
		p.cmd.Stdout = nil
		pipe, err := p.cmd.StdoutPipe()
		if err != nil {
			return nil, err
		}
		out = bufio.NewReader(pipe)
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	if out != nil {
		line, err := out.ReadString('\n')
		if err != nil {
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
			return nil, fmt.Errorf("starting %s: %w: %s", name, err, lastLines(p.log, 5))
		}
		*firstLine = strings.TrimSpace(line)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// exited reports an early end as an error.
func (p *process) exited() error {
	select {
	case <-p.done:
		err := p.err
		if err == nil {
			err = errors.New("exit code 0")
		}
		return fmt.Errorf("%s ended by itself: %w: %s", p.name, err, lastLines(p.log, 5))
	default:
		return nil
	}
}

// stop ends the process by SIGTERM, after half a minute by SIGKILL.
func (p *process) stop() error {
	if p == nil {
		return nil
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(30 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.done
		return fmt.Errorf("%s did not end within 30 s of SIGTERM", p.name)
	}
	var exit *exec.ExitError
	if errors.As(p.err, &exit) {
		return fmt.Errorf("%s: %w: %s", p.name, exit, lastLines(p.log, 5))
	}
	return p.err
}

func lastLines(path string, n int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
