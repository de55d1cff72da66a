// Command services starts a private RabbitMQ and a private PostgreSQL, runs a
// command with INBOXD_TEST_AMQP_URL and INBOXD_TEST_DATABASE_URL set, and
// removes both servers again, whatever happens:
//
//	go run ./internal/testenv/services -- go test ./...
//	go run ./internal/testenv/services -- sleep infinity
//
// A server whose variable is set already is used as it is.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/inboxd/inboxd/internal/testenv"
)

func main() { os.Exit(run(os.Args[1:], os.Stderr)) }

func run(args []string, stderr io.Writer) int {
	// Before anything is started, so that no signal can leave it behind.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	stopWithGoRun()

	flags := flag.NewFlagSet("services", flag.ContinueOnError)
	flags.SetOutput(stderr)
	rabbitOnly := flags.Bool("rabbit-only", false, "start no PostgreSQL")
	install := flags.Bool("install", false, "install missing servers by apt-get, as root or by sudo")
	flags.Usage = func() {
		fmt.Fprintln(stderr, "usage: services [-rabbit-only] [-install] -- COMMAND [ARGUMENT…]")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if flags.NArg() == 0 {
		flags.Usage()
		return 2
	}
	s := &services{rabbitOnly: *rabbitOnly, stderr: stderr}
	if *install {
		if err := s.install(); err != nil {
			fmt.Fprintln(stderr, "services:", err)
			return 1
		}
	}
	code, err := s.runCommand(flags.Args(), signals)
	if err := errors.Join(err, s.stop()); err != nil {
		fmt.Fprintln(stderr, "services:", err)
		return max(code, 1)
	}
	return code
}

type services struct {
	rabbitOnly bool
	stderr     io.Writer
	rabbit     *testenv.Rabbit
	postgres   *testenv.Postgres
	env        []string
}

// start starts what is not there yet. What was started before an error is
// still to be stopped.
func (s *services) start() error {
	began := time.Now()
	var g errgroup.Group
	g.Go(func() (err error) {
		if os.Getenv(testenv.AMQPVar) == "" {
			s.rabbit, err = testenv.StartRabbit(testenv.Options{})
		}
		return err
	})
	g.Go(func() (err error) {
		if os.Getenv(testenv.DatabaseVar) == "" && !s.rabbitOnly {
			s.postgres, err = testenv.StartPostgres(testenv.Options{})
		}
		return err
	})
	if err := g.Wait(); err != nil {
		return err
	}
	s.env = os.Environ()
	if s.rabbit != nil {
		s.env = append(s.env, testenv.AMQPVar+"="+s.rabbit.URL)
		fmt.Fprintf(s.stderr, "%s=%s\n", testenv.AMQPVar, s.rabbit.URL)
	}
	if s.postgres != nil {
		s.env = append(s.env, testenv.DatabaseVar+"="+s.postgres.URL)
		fmt.Fprintf(s.stderr, "%s=%s\n", testenv.DatabaseVar, s.postgres.URL)
	}
	fmt.Fprintf(s.stderr, "services ready after %v\n", time.Since(began).Round(100*time.Millisecond))
	return nil
}

func (s *services) stop() error {
	var errs []error
	if s.rabbit != nil {
		errs = append(errs, s.rabbit.Stop())
	}
	if s.postgres != nil {
		errs = append(errs, s.postgres.Stop())
	}
	return errors.Join(errs...)
}

// runCommand runs the command with the servers and passes signals on to it. It
// returns the command's exit code, or 128 and the signal's number as shells do.
func (s *services) runCommand(args []string, signals <-chan os.Signal) (int, error) {
	if err := s.start(); err != nil {
		return 1, err
	}
	select {
	case sig := <-signals:
		return exitCodeOf(sig), nil
	default:
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = s.env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// In a group of its own, the command hears of an interrupt typed at the
	// terminal once, from us, and so does everything that it started.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return 127, fmt.Errorf("starting the command: %w", err)
	}
	ctx, ended := context.WithCancel(context.Background())
	defer ended()
	go func() {
		for {
			select {
			case sig := <-signals:
				_ = syscall.Kill(-cmd.Process.Pid, sig.(syscall.Signal))
			case <-ctx.Done():
				return
			}
		}
	}()
	err := cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			return exitCodeOf(status.Signal()), nil
		}
		return exit.ExitCode(), nil
	}
	return 0, err
}

func exitCodeOf(sig os.Signal) int { return 128 + int(sig.(syscall.Signal)) }
