// Command bench measures inboxd against the bare loop: consume, POST, ack,
// without any deduplication, in the same run on the same machine. It starts a
// private broker and database, runs every program as a process of its own, and
// prints ratios rather than figures, for figures belong to one machine only.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

const usage = `Usage: bench [COMMAND] [FLAGS]

Commands:
  default      the short tour: throughput -quick, latency and idle (the default)
  throughput   drain a full queue with each program in turn, interleaved
  latency      steady rates: publish to handler, publish to ack
  growth       how the cost grows: filled inboxes, consumers, replicas
  idle         memory and CPU while nothing happens, start to first message

"bench COMMAND -h" lists the flags of a command.
`

func main() { os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr)) }

// run is main without globals. The commands loop and handler are the processes
// that the others start.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal gets the default: die now

	name := "default"
	if len(args) > 0 && args[0] != "" && args[0][0] != '-' {
		name, args = args[0], args[1:]
	}
	commands := map[string]func(context.Context, []string, io.Writer) error{
		"default":    runDefault,
		"throughput": runThroughput,
		"latency":    runLatency,
		"growth":     runGrowth,
		"idle":       runIdle,
		"loop":       runLoop,
		"handler":    runHandler,
	}
	command, ok := commands[name]
	if !ok {
		fmt.Fprint(stderr, usage)
		return 2
	}
	switch err := command(ctx, args, stdout); {
	case errors.Is(err, errUsage):
		return 2
	case err != nil:
		fmt.Fprintf(stderr, "bench %s: %v\n", name, err)
		return 1
	}
	return 0
}
