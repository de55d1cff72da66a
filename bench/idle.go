package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/inboxd/inboxd/internal/testenv"
)

// idleResult is what a program costs while there is nothing to do.
type idleResult struct {
	Program string  `json:"program"`
	StartMS spread3 `json:"start_to_first_message_ms"`
	RSS     int64   `json:"rss_bytes"`
	Peak    int64   `json:"peak_rss_bytes"`
	// CPU is the share of one core, in per cent.
	CPU     float64 `json:"cpu_percent"`
	Seconds float64 `json:"seconds"`
}

type spread3 struct {
	Median float64 `json:"median"`
	Least  float64 `json:"min"`
	Most   float64 `json:"max"`
}

func runIdle(ctx context.Context, args []string, out io.Writer) error {
	fs := flag.NewFlagSet("idle", flag.ContinueOnError)
	session := addSessionFlags(fs)
	names := fs.String("programs", "bare,inboxd-sqlite,inboxd-postgres", "programs to look at")
	seconds := fs.Int("seconds", 60, "how long to look; the CPU clock ticks in hundredths of a second")
	starts := fs.Int("starts", 5, "starts to time")
	if err := parseFlags(fs, args); err != nil {
		return err
	}
	chosen, err := programsNamed(*names)
	if err != nil {
		return err
	}
	return withSession(ctx, session, out, func(b *bench) error {
		results, err := b.idleAll(ctx, chosen, time.Duration(*seconds)*time.Second, *starts, out)
		return errors.Join(err, writeJSON(*session.json, b.environment(), "idle", results))
	})
}

func (b *bench) idleAll(ctx context.Context, chosen []program, span time.Duration, starts int, out io.Writer) ([]idleResult, error) {
	fmt.Fprintf(out, "\nIdle for %v after one message; start to first message over %d starts\n", span, starts)
	rows := [][]string{{"program", "RSS", "peak RSS", "CPU % of a core", "start to first message, ms", "min–max"}}
	var all []idleResult
	for _, p := range chosen {
		r, err := b.idle(ctx, p, span, starts)
		if err != nil {
			return all, fmt.Errorf("%s: %w", p.name, err)
		}
		all = append(all, r)
		rows = append(rows, []string{
			p.name, fmt.Sprintf("%.1f MiB", float64(r.RSS)/(1<<20)), fmt.Sprintf("%.1f MiB", float64(r.Peak)/(1<<20)),
			fmt.Sprintf("%.2f", r.CPU), fmt.Sprintf("%.0f", r.StartMS.Median),
			fmt.Sprintf("%.0f–%.0f", r.StartMS.Least, r.StartMS.Most),
		})
	}
	printTable(out, rows)
	return all, nil
}

func (b *bench) idle(ctx context.Context, p program, span time.Duration, starts int) (r idleResult, err error) {
	r = idleResult{Program: p.name, Seconds: span.Seconds()}
	var times []float64
	for i := range starts {
		last := i == starts-1
		ms, err := b.startOnce(ctx, p, func(proc *process) {
			if !last {
				return
			}
			sleep(ctx, 3*time.Second) // what starting leaves behind
			before := cpuTime(proc.pid())
			sleep(ctx, span)
			r.CPU = (cpuTime(proc.pid()) - before).Seconds() / span.Seconds() * 100
			r.Peak, r.RSS = memory(proc.pid())
		})
		if err != nil {
			return r, err
		}
		times = append(times, ms)
	}
	s := spreadOf(times)
	r.StartMS = spread3{s.median, s.least, s.most}
	return r, ctx.Err()
}

// startOnce starts the program on a queue with one message and returns the
// milliseconds until the handler has it.
func (b *bench) startOnce(ctx context.Context, p program, look func(*process)) (ms float64, err error) {
	dir, err := os.MkdirTemp(b.dir, "run-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	queue := testenv.UniqueName("bench")
	if err := fill(ctx, b.amqpURL, queue, "quorum", []int{0}, 1024); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, deleteQueue(b.amqpURL, queue)) }()
	h, err := b.startHandler(dir, 1, 0, false, "")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, h.stop()) }()
	storeURL, drop, err := b.newStore(ctx, p, dir, inboxStore{})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, drop()) }()

	started := time.Now()
	s := scenario{Queue: "quorum", Concurrency: 16, Prefetch: 32, Defaults: true}
	running, err := b.startProgram(dir, p, s, task{
		amqpURL: b.amqpURL, target: h.target(), storeURL: storeURL, queues: []string{queue}, consumer: "bench",
	})
	defer func() { err = errors.Join(err, stopAll(running)) }()
	if err != nil {
		return 0, err
	}
	stats, problem := h.await(ctx, running, 1, 1, true)
	if problem != "" {
		return 0, errors.New(problem)
	}
	look(running[0])
	return float64(stats.First-started.UnixNano()) / 1e6, nil
}
