package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/url"
	"os"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/inboxd/inboxd/internal/testenv"
)

// latencyResult is one program at one rate.
type latencyResult struct {
	Program string             `json:"program"`
	Rate    int                `json:"rate"`
	Handler percentiles        `json:"publish_to_handler_ms"`
	Ack     percentiles        `json:"publish_to_ack_ms"`
	CPU     map[string]float64 `json:"cpu_ms_per_1000"`
	Invalid string             `json:"invalid,omitempty"`
}

// percentiles are in milliseconds.
type percentiles struct {
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p99.9"`
	Max  float64 `json:"max"`
	N    int     `json:"n"`
}

func percentilesOf(nanoseconds []int64) percentiles {
	if len(nanoseconds) == 0 {
		return percentiles{}
	}
	sorted := slices.Sorted(slices.Values(nanoseconds))
	at := func(q float64) float64 {
		return float64(sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]) / 1e6
	}
	return percentiles{at(0.5), at(0.99), at(0.999), float64(sorted[len(sorted)-1]) / 1e6, len(sorted)}
}

type latencyOptions struct {
	rates   []int
	seconds int
	warmUp  int
	s       scenario
}

func runLatency(ctx context.Context, args []string, out io.Writer) error {
	fs := flag.NewFlagSet("latency", flag.ContinueOnError)
	session := addSessionFlags(fs)
	names := fs.String("programs", "bare,inboxd-sqlite,inboxd-postgres", "programs to compare")
	rates := fs.String("rates", "100,500,2000", "messages a second")
	o := latencyOptions{s: scenario{Consumers: 1, Replicas: 1}}
	fs.IntVar(&o.seconds, "seconds", 20, "time for each rate")
	fs.IntVar(&o.warmUp, "warm-up", 2, "seconds at the start that do not count")
	fs.StringVar(&o.s.Queue, "queue", "quorum", "quorum or classic")
	fs.IntVar(&o.s.Size, "size", 1024, "bytes of a body")
	fs.IntVar(&o.s.Concurrency, "concurrency", 16, "requests in flight")
	fs.IntVar(&o.s.Prefetch, "prefetch", 256, "unacknowledged deliveries")
	fs.BoolVar(&o.s.Defaults, "defaults", true, "leave inboxd's concurrency and prefetch at their defaults")
	if err := parseFlags(fs, args); err != nil {
		return err
	}
	chosen, err := programsNamed(*names)
	if err != nil {
		return err
	}
	if o.rates, err = splitInts(*rates); err != nil {
		return err
	}
	return withSession(ctx, session, out, func(b *bench) error {
		results, err := b.latencies(ctx, chosen, o, out)
		return errors.Join(err, writeJSON(*session.json, b.environment(), "latency", results))
	})
}

func (b *bench) latencies(ctx context.Context, chosen []program, o latencyOptions, out io.Writer) ([]latencyResult, error) {
	fmt.Fprintf(out, "\nLatency at a steady rate: %s queue, %s bodies, no duplicates, %d s a rate; milliseconds\n",
		o.s.Queue, bytesText(o.s.Size), o.seconds)
	var all []latencyResult
	for _, rate := range o.rates {
		for _, p := range chosen {
			r, err := b.latency(ctx, p, o, rate)
			if err != nil {
				return all, fmt.Errorf("%s at %d/s: %w", p.name, rate, err)
			}
			all = append(all, r)
		}
	}
	printLatencies(out, all)
	for _, r := range all {
		if r.Invalid != "" {
			return all, fmt.Errorf("%s at %d/s is invalid: %s", r.Program, r.Rate, r.Invalid)
		}
	}
	return all, nil
}

func (b *bench) latency(ctx context.Context, p program, o latencyOptions, rate int) (r latencyResult, err error) {
	r = latencyResult{Program: p.name, Rate: rate}
	dir, err := os.MkdirTemp(b.dir, "run-")
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	queue := testenv.UniqueName("bench")
	if err := fill(ctx, b.amqpURL, queue, o.s.Queue, nil, o.s.Size); err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, deleteQueue(b.amqpURL, queue)) }()
	messages := rate * o.seconds
	h, err := b.startHandler(dir, messages, 0, true, "")
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, h.stop()) }()
	storeURL, drop, err := b.newStore(ctx, p, dir, inboxStore{})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, drop()) }()

	broker, err := url.Parse(b.amqpURL)
	if err != nil {
		return r, err
	}
	line, err := newTap(broker.Host)
	if err != nil {
		return r, err
	}
	defer line.close()
	broker.Host = line.addr
	running, err := b.startProgram(dir, p, o.s, task{
		amqpURL: broker.String(), target: h.target(), storeURL: storeURL, queues: []string{queue}, consumer: "bench",
	})
	defer func() {
		if stopErr := stopAll(running); stopErr != nil && r.Invalid == "" {
			r.Invalid = stopErr.Error()
		}
	}()
	if err != nil {
		return r, err
	}
	if err := b.awaitConsumer(ctx, queue, running[0]); err != nil {
		return r, err
	}
	before := b.cpu(h, running)
	if err := publishSteadily(ctx, b.amqpURL, queue, rate, messages, o.s.Size); err != nil {
		return r, err
	}
	stats, problem := h.await(ctx, running, messages, messages, true)
	sleep(ctx, 300*time.Millisecond)
	r.CPU = perThousand(before, b.cpu(h, running), messages)
	var seen []int64
	if err := h.get("/latencies", &seen); err != nil {
		return r, err
	}
	acked := line.taken()
	skip := rate * o.warmUp
	r.Handler, r.Ack = percentilesOf(seen[min(skip, len(seen)):]), percentilesOf(acked[min(skip, len(acked)):])
	r.Invalid = problem
	if r.Invalid == "" && (stats.Requests != int64(messages) || len(acked) != messages) {
		r.Invalid = fmt.Sprintf("%d requests and %d acknowledgements for %d messages", stats.Requests, len(acked), messages)
	}
	return r, nil
}

// awaitConsumer returns when the program consumes.
func (b *bench) awaitConsumer(ctx context.Context, queue string, p *process) error {
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); sleep(ctx, 50*time.Millisecond) {
		if err := errors.Join(p.exited(), ctx.Err()); err != nil {
			return err
		}
		n, err := testenv.ConsumerCount(b.amqpURL, queue)
		if err != nil {
			return err
		}
		if n > 0 {
			return nil
		}
	}
	return fmt.Errorf("%s does not consume: %s", p.name, lastLines(p.log, 5))
}

// publishSteadily publishes at fixed times: a slow broker does not thin out the
// load, so its slowness is seen (no coordinated omission).
func publishSteadily(ctx context.Context, amqpURL, queue string, rate, messages, size int) error {
	conn, ch, err := openChannel(amqpURL)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := ch.Confirm(false); err != nil {
		return fmt.Errorf("asking for confirms: %w", err)
	}
	var last *amqp.DeferredConfirmation
	start := time.Now()
	for n := range messages {
		due := start.Add(time.Duration(n) * time.Second / time.Duration(rate))
		if wait := time.Until(due); wait > 0 {
			sleep(ctx, wait)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if last, err = ch.PublishWithDeferredConfirm("", queue, false, false, publishing(n, stampedBody(due, n, size))); err != nil {
			return fmt.Errorf("publishing: %w", err)
		}
	}
	if last == nil {
		return nil
	}
	_, err = last.WaitContext(ctx)
	return err
}

func printLatencies(out io.Writer, all []latencyResult) {
	rows := [][]string{{
		"program", "rate", "handler p50", "p99", "p99.9", "added p50", "added p99",
		"ack p50", "p99", "p99.9", "added p50", "added p99", "daemon CPU ms/1000",
	}}
	ms := func(v float64) string { return fmt.Sprintf("%.2f", v) }
	bare := map[int]latencyResult{}
	for _, r := range all {
		if r.Program == yardstick {
			bare[r.Rate] = r
		}
	}
	for _, r := range all {
		added := func(v, of float64) string {
			if _, ok := bare[r.Rate]; !ok || r.Program == yardstick {
				return "–"
			}
			return fmt.Sprintf("%+.2f", v-of)
		}
		y := bare[r.Rate]
		rows = append(rows, []string{
			r.Program, fmt.Sprint(r.Rate),
			ms(r.Handler.P50), ms(r.Handler.P99), ms(r.Handler.P999),
			added(r.Handler.P50, y.Handler.P50), added(r.Handler.P99, y.Handler.P99),
			ms(r.Ack.P50), ms(r.Ack.P99), ms(r.Ack.P999),
			added(r.Ack.P50, y.Ack.P50), added(r.Ack.P99, y.Ack.P99), fmt.Sprintf("%.0f", r.CPU[daemonCost]),
		})
	}
	printTable(out, rows)
}
