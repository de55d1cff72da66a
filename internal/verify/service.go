package verify

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// service is how the handler's process is killed and brought back.
type service struct {
	pid     int                         // 0: from pidFile, or the command kills
	pidFile string                      // read before each kill
	command string                      // starts it, or restarts it where there is no PID
	run     func(context.Context) error // in place of command, for tests
	wait    time.Duration
	killed  bool // a fixed PID can be killed once
}

var errOnePID = errors.New("a fixed --pid can be killed once; use --pid-file or --restart-cmd for more")

// kill ends the process at once, without a chance to clean up.
func (s *service) kill() error {
	pid := s.pid
	if s.pidFile != "" {
		b, err := os.ReadFile(s.pidFile)
		if err != nil {
			return fmt.Errorf("--pid-file: %w", err)
		}
		if pid, err = strconv.Atoi(strings.TrimSpace(string(b))); err != nil {
			return fmt.Errorf("--pid-file: %w", err)
		}
	}
	if pid == 0 {
		return nil // start does it
	}
	if s.fixed() && s.killed {
		return errOnePID
	}
	s.killed = true
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return fmt.Errorf("killing process %d: %w", pid, err)
	}
	return nil
}

// start brings the service back and waits until somebody listens.
func (s *service) start(ctx context.Context, t *target) error {
	if err := s.runCommand(ctx); err != nil {
		return fmt.Errorf("--restart-cmd: %w", err)
	}
	end := time.Now().Add(s.wait)
	for {
		err := t.reachable(ctx)
		if err == nil {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("the service is not back %v after it was killed: %w", s.wait, err)
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

func (s *service) runCommand(ctx context.Context) error {
	switch {
	case s.run != nil:
		return s.run(ctx)
	case s.command == "":
		return nil
	}
	// The service may inherit what the command has: were that a pipe, Run would
	// wait for the end of the service.
	return exec.CommandContext(ctx, "sh", "-c", s.command).Run() //nolint:gosec // the user's own command line
}

// given reports whether there is a way to kill or restart at all.
func (s *service) given() bool {
	return s.command != "" || s.run != nil || s.pid != 0 || s.pidFile != ""
}

// fixed reports whether there is one kill only.
func (s *service) fixed() bool { return s.pid != 0 }

// restart kills the service while it is idle and sends a finished message
// again.
func (r *runner) restart(ctx context.Context, c *Case) error {
	if r.service.fixed() {
		// The one kill is worth more in the middle of work; kill looks at a
		// finished message too.
		c.skip("shown together with the next case: --pid can be killed once")
		return nil
	}
	w, err := r.finished(ctx, c)
	if err != nil || c.Result == Fail {
		return err
	}
	if err := r.bounce(ctx); err != nil {
		return err
	}
	return r.afterRestart(ctx, c, w)
}

// finished processes a message to the end.
func (r *runner) finished(ctx context.Context, c *Case) (*watch, error) {
	r.done = r.mint.next()
	w, err := r.scale.watch(ctx, r.done)
	if err != nil {
		return nil, err
	}
	a, err := r.persist(ctx, c, r.done, 1)
	if err == nil && !a.ok() {
		c.fail(faultNeverDone, "the message was not answered 2xx; last answer: %s", explain(a))
	}
	return w, err
}

func (r *runner) bounce(ctx context.Context) error {
	if err := r.service.kill(); err != nil {
		return err
	}
	return r.service.start(ctx, r.target)
}

func (r *runner) afterRestart(ctx context.Context, c *Case, w *watch) error {
	return r.finish(ctx, c, w, r.done, faultForgets, faultForgets,
		"after a message was processed, the service was killed and started again, and the message was sent again")
}

// kill kills the service at several moments of its work on a message, and sends
// the message again.
func (r *runner) kill(ctx context.Context, c *Case) error {
	rounds := r.rounds
	fixed := r.service.fixed()
	if fixed {
		rounds = 1
	}
	for i := range rounds {
		var before *watch
		var err error
		if fixed {
			if before, err = r.finished(ctx, c); err != nil || c.Result == Fail {
				return err
			}
		}
		m := r.mint.next()
		w, err := r.scale.watch(ctx, m)
		if err != nil {
			return err
		}
		s, err := r.target.aim(ctx, m, 1)
		if err != nil {
			return err
		}
		defer s.cut()
		if err := s.fire(); err != nil {
			return err
		}
		c.cutShort(1)
		if err := pause(ctx, r.latency*time.Duration(2*i+1)/time.Duration(2*rounds)); err != nil {
			return err
		}
		if err := r.bounce(ctx); err != nil {
			return err
		}
		s.cut()
		if err := r.finish(ctx, c, w, m, faultHalf, faultHalf,
			"after the service was killed at work on a message and the message was sent again"); err != nil || c.Result == Fail {
			return err
		}
		if fixed {
			if err := r.afterRestart(ctx, c, before); err != nil {
				return err
			}
		}
	}
	return nil
}
