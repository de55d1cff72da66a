// Command demo shows the main job of inboxd on this machine: a thousand orders,
// a hundred of them published twice, a daemon that is killed in the middle, and
// every order's effect once. It brings what it needs and leaves nothing behind:
//
//	make demo          # or: go run ./demo
//	make demo KEEP=1   # everything stays up until Ctrl-C, to look around
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

func main() { os.Exit(run(context.Background(), os.Stdout, os.Getenv)) }

// longest is a bound, not a plan: a demo that hangs teaches nothing.
const longest = 3 * time.Minute

func run(ctx context.Context, out *os.File, getenv func(string) string) int {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	stopWithGoRun()

	d := &demo{out: newScreen(out), getenv: getenv}
	err := d.play(ctx)
	// Further signals stay without effect: the end takes seconds, and must not
	// be left half done.
	interrupted := ctx.Err() != nil
	cleanErr := d.cleanUp()
	if interrupted && !d.shown {
		err = nil // it says no more than that
	}
	if err := errors.Join(err, cleanErr); err != nil {
		d.out.line("\nThe demo failed: %v", err)
		return 1
	}
	if interrupted {
		d.out.line("Stopped; nothing is left running.")
	}
	if interrupted && !d.shown {
		return 130
	}
	return 0
}

// demo is one performance.
type demo struct {
	out    *screen
	getenv func(string) string

	root    string // of the source
	dir     string // temporary
	broker  broker
	queue   string
	handler *handler
	daemon  *daemon
	shown   bool // the result is on the screen

	undo []func() error
}

// later registers what cleanUp does, last first.
func (d *demo) later(f func() error) { d.undo = append(d.undo, f) }

func (d *demo) cleanUp() error {
	var errs []error
	for _, f := range slices.Backward(d.undo) {
		errs = append(errs, f())
	}
	d.undo = nil
	return errors.Join(errs...)
}

func (d *demo) play(ctx context.Context) (err error) {
	d.out.line("inboxd demo: %s orders, %d of them published twice, and the daemon killed in the middle.",
		thousands(orderCount), duplicateCount)
	d.out.line("Every order must take effect once.\n")
	if d.root, err = moduleRoot(ctx); err != nil {
		return err
	}
	if d.dir, err = os.MkdirTemp("", "inboxd-demo-"); err != nil {
		return err
	}
	d.later(func() error { return os.RemoveAll(d.dir) })
	built := d.build(ctx) // while the broker starts
	if err := d.findBroker(ctx); err != nil {
		return err
	}
	d.out.step("Programs")
	d.out.wait("  Building inboxd and the example handler from this source …")
	if err := <-built; err != nil {
		return err
	}
	d.out.line("  inboxd and the example handler are built from this source.")
	began := time.Now()
	limited, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	result, err := d.perform(limited)
	if err != nil {
		if limited.Err() != nil && ctx.Err() == nil {
			err = fmt.Errorf("not done after %v: %w", longest, err)
		}
		return err
	}
	d.out.step("Result")
	result.print(d.out)
	d.shown = true
	if problems := result.problems(); len(problems) > 0 {
		err = errors.Join(problems...)
	} else {
		d.out.line("\n  Every order took effect exactly once, and none was lost, in %.1f seconds.", time.Since(began).Seconds())
	}
	if d.getenv("KEEP") != "" && d.getenv("KEEP") != "0" {
		return errors.Join(err, d.keep(ctx))
	}
	return err
}

func (d *demo) program(name string) string { return filepath.Join(d.dir, name) }

// build compiles the programs in the background. With the flags of a plain
// `go run` the packages that the demo shares with them are compiled once.
func (d *demo) build(ctx context.Context) <-chan error {
	ctx, cancel := context.WithCancel(ctx)
	built := make(chan error, 1)
	done := make(chan struct{})
	d.later(func() error { cancel(); <-done; return nil })
	go func() {
		defer close(done)
		built <- errors.Join(
			goBuild(ctx, d.root, d.program("inboxd"), "./cmd/inboxd"),
			goBuild(ctx, filepath.Join(d.root, "examples", "handler-go"), d.program("handler"), "."),
		)
	}()
	return built
}

// perform is the play itself, from an empty queue to the figures.
func (d *demo) perform(ctx context.Context) (tally, error) {
	d.out.step("Handler")
	var err error
	if d.handler, err = startHandler(ctx, d.dir, d.program("handler")); err != nil {
		return tally{}, err
	}
	d.later(d.handler.stop)
	d.out.line("  The service that takes the orders. It writes the message's key and the order's effect in one")
	d.out.line("  SQLite transaction, and answers 2xx to a key that it has already. %s", d.handler.url())

	d.out.step("Orders")
	if err := d.publishOrders(ctx); err != nil {
		return tally{}, err
	}

	d.out.step("Daemon")
	if d.daemon, err = newDaemon(d.dir, d.program("inboxd"), d.broker.url, d.queue, d.handler.url()); err != nil {
		return tally{}, err
	}
	d.later(func() error { d.daemon.kill(); return nil })
	d.out.line("  inboxd posts each order to the handler, records it after the 2xx, and only then acknowledges it.")
	return d.killInTheMiddle(ctx)
}

// keep leaves everything up until somebody presses Ctrl-C.
func (d *demo) keep(ctx context.Context) error {
	if err := d.daemon.start(); err != nil {
		return err
	}
	d.out.line("\nEverything stays up until Ctrl-C. Look around:")
	for _, row := range [][2]string{
		{"status page and API", "http://" + d.daemon.admin + "/"},
		{"metrics", "http://" + d.daemon.metrics + "/metrics"},
		{"is it consuming?", "http://" + d.daemon.metrics + "/consuming"},
		{"handler's figures", d.handler.base + "/stats"},
		{"broker", d.broker.shown + "  queue " + d.queue},
		{"configuration", d.daemon.config},
		{"inbox and logs", d.dir},
		{"command line", d.daemon.program + " parked list -c " + d.daemon.config},
	} {
		d.out.line("  %-20s %s", row[0], row[1])
	}
	<-ctx.Done()
	return nil
}
