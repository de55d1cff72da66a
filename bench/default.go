package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"
)

// runDefault is the short tour, under ten minutes on two cores.
func runDefault(ctx context.Context, args []string, out io.Writer) error {
	fs := flag.NewFlagSet("default", flag.ContinueOnError)
	session := addSessionFlags(fs)
	names := fs.String("programs", allPrograms, "programs to compare")
	if err := parseFlags(fs, args); err != nil {
		return err
	}
	chosen, err := programsNamed(*names)
	if err != nil {
		return err
	}
	var few []program // latency and idle compare the bare loop and inboxd
	for _, p := range chosen {
		if p.name == yardstick || strings.HasPrefix(p.name, "inboxd") {
			few = append(few, p)
		}
	}
	began := time.Now()
	return withSession(ctx, session, out, func(b *bench) error {
		e := b.environment()
		s := scenario{
			Queue: "quorum", Messages: 50_000, Duplicates: 0.1, Size: 1024, Concurrency: 64, Consumers: 1, Replicas: 1,
		}.sized()
		results, err := b.compare(ctx, chosen, s, 5, out)
		errs := []error{err, invalidRuns(results)}
		latencies, err := b.latencies(ctx, few, latencyOptions{
			rates: []int{100, 500, 2000}, seconds: 8, warmUp: 2,
			s: scenario{Queue: "quorum", Size: 1024, Concurrency: 16, Prefetch: 256, Defaults: true},
		}, out)
		errs = append(errs, err)
		idle, err := b.idleAll(ctx, few, 15*time.Second, 5, out)
		errs = append(errs, err, writeJSON(*session.json, e, "default", map[string]any{
			"throughput": results, "latency": latencies, "idle": idle,
		}))
		fmt.Fprintf(out, "\nTook %v.\n", time.Since(began).Round(time.Second))
		return errors.Join(errs...)
	})
}
