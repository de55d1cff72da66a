// Command inboxd is the inbox pattern as a sidecar: it consumes from RabbitMQ,
// posts each message that its durable inbox does not know yet to a local HTTP
// handler, records it after a 2xx, and then acks.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
)

// Exit codes, the same for every command.
const (
	exitOK     = 0
	exitFailed = 1 // a restart or another try may help
	exitUsage  = 2 // usage or configuration: it will not
)

func main() { os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// command is one verb of the command line.
type command struct {
	name    string
	args    string // in the usage line
	summary string
	run     func(ctx context.Context, env environment, args []string) int
}

// environment is what a command may touch of the outside.
type environment struct {
	stdin          io.Reader
	stdout, stderr io.Writer
}

func (e environment) errorf(format string, a ...any) {
	fmt.Fprintf(e.stderr, "inboxd: "+format+"\n", a...)
}

// run is main without globals, so that tests call it as a function.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, stop := untilSignal(ctx)
	defer stop()

	env := environment{stdin: stdin, stdout: stdout, stderr: stderr}
	if len(args) == 0 {
		usage(stderr)
		return exitUsage
	}
	switch args[0] {
	case "help", "-h", "-help", "--help":
		usage(stdout)
		return exitOK
	case "-v", "-version", "--version":
		args[0] = "version"
	}
	all := commands()
	i := slices.IndexFunc(all, func(c command) bool { return c.name == args[0] })
	if i < 0 {
		env.errorf("there is no command %q; 'inboxd help' lists them", args[0])
		return exitUsage
	}
	return all[i].run(ctx, env, args[1:])
}

func usage(w io.Writer) {
	fmt.Fprint(w, `inboxd consumes from RabbitMQ and posts each message that its inbox does not know
yet to an HTTP handler.

Usage: inboxd COMMAND [flags]

`)
	for _, c := range commands() {
		fmt.Fprintf(w, "  %-34s %s\n", strings.TrimSpace(c.name+" "+c.args), c.summary)
	}
	fmt.Fprint(w, `
'inboxd COMMAND -h' tells more. Exit codes: 0 done, 1 failed (another try may
help), 2 usage or configuration (it will not).
`)
}

// untilSignal returns a context that SIGINT and SIGTERM end. The second of them
// ends the process at once, even where it comes before anything has noticed the
// first. stop leaves the signals to their defaults; call it once.
func untilSignal(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	stopped := make(chan struct{})
	go func() {
		for n := 1; ; n++ {
			select {
			case <-stopped:
				return
			case s := <-signals:
				cancel(fmt.Errorf("%v signal received", s))
				if sig, ok := s.(syscall.Signal); ok && n > 1 {
					signal.Reset(sig)
					_ = syscall.Kill(os.Getpid(), sig)
				}
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(stopped)
		cancel(nil)
	}
}
