package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/inboxd/inboxd/internal/testenv"
)

// result is what one program did in one run.
type result struct {
	Program  string   `json:"program"`
	Round    int      `json:"round"`
	Scenario scenario `json:"scenario"`
	// Rate is in messages a second, duplicates included, from the first request
	// to the last.
	Rate    float64 `json:"rate"`
	Seconds float64 `json:"seconds"`
	// StartMS is the time from the start of the process to the first request.
	StartMS float64 `json:"start_ms"`
	// CPU is in milliseconds for a thousand messages, by process.
	CPU     map[string]float64 `json:"cpu_ms_per_1000"`
	PeakRSS map[string]int64   `json:"peak_rss_bytes"`

	// Records were in the inbox before the run.
	Records  int   `json:"records,omitempty"`
	Requests int64 `json:"requests"`
	Unique   int64 `json:"unique"`
	// Invalid says what was wrong; such a run counts for nothing.
	Invalid string `json:"invalid,omitempty"`
}

// inboxStore is a store that outlives a run; the zero value means a new one.
type inboxStore struct {
	url  string
	base int // number of the first message, so that it is new to the store
	name string
}

// drain fills the queues, lets the program empty them and checks that nothing
// was lost and, where the program promises it, nothing handled twice. An error
// means that the bench itself failed; a program that fails has an invalid run.
func (b *bench) drain(ctx context.Context, p program, s scenario, store inboxStore) (r result, err error) {
	r = result{Program: p.name, Scenario: s}
	dir, err := os.MkdirTemp(b.dir, "run-")
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	order, unique := schedule(s.Messages, s.Duplicates)
	queues, drop, err := b.fillQueues(ctx, s, order, store.base)
	defer func() { err = errors.Join(err, drop()) }()
	if err != nil {
		return r, err
	}
	rowsURL, dropRows, err := b.newRows(ctx, p)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, dropRows()) }()
	h, err := b.startHandler(dir, store.base+unique, time.Duration(s.DelayMS)*time.Millisecond, false, rowsURL)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, h.stop()) }()
	storeURL, dropStore, err := b.newStore(ctx, p, dir, store)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, dropStore()) }()
	if err := b.checkpoint(ctx); err != nil {
		return r, err
	}
	b.settle(ctx, 10*time.Second)

	before := b.cpu(h, nil)
	started := time.Now()
	running, err := b.startProgram(dir, p, s, task{
		amqpURL: b.amqpURL, target: h.target(), storeURL: storeURL, rowsURL: rowsURL, queues: queues,
		consumer: firstOf(store.name, "bench"),
	})
	stop := func() error { return stopAll(running) }
	defer func() { err = errors.Join(err, stop()) }()
	if err != nil {
		return r, err
	}
	_, problem := h.await(ctx, running, s.Messages, unique, p.dedups)
	if ctx.Err() != nil {
		return r, ctx.Err()
	}
	sleep(ctx, 300*time.Millisecond) // the last records and acknowledgements

	r.CPU = perThousand(before, b.cpu(h, running), s.Messages)
	r.PeakRSS = peaks(h, running)
	stop = func() error { return nil }
	if err := stopAll(running); err != nil && problem == "" {
		problem = err.Error()
	}
	stats, err := h.stats()
	if err != nil {
		return r, err
	}
	r.Requests, r.Unique = stats.Requests, stats.Unique
	r.Seconds = float64(stats.Last-stats.First) / 1e9
	if r.Seconds > 0 {
		r.Rate = float64(s.Messages) / r.Seconds
	}
	r.StartMS = float64(stats.First-started.UnixNano()) / 1e6
	r.Invalid = firstOf(problem, b.check(p, stats, s.Messages, unique, queues))
	return r, nil
}

// check states what is wrong with a finished run, "" where nothing is.
func (b *bench) check(p program, stats handlerStats, total, unique int, queues []string) string {
	want := int64(total)
	if p.dedups {
		want = int64(unique)
	}
	switch {
	case stats.Foreign != 0 && !p.anonymous:
		return fmt.Sprintf("%d requests without a known message ID", stats.Foreign)
	case stats.Unique != int64(unique) && !p.anonymous:
		return fmt.Sprintf("%d of %d different messages handled", stats.Unique, unique)
	case stats.Requests != want:
		return fmt.Sprintf("%d requests, want %d", stats.Requests, want)
	}
	for _, q := range queues {
		if left, err := b.leftIn(q); err != nil {
			return err.Error()
		} else if left > 0 {
			return fmt.Sprintf("%d messages left in the queue", left)
		}
	}
	return ""
}

// leftIn gives the broker a moment to take back what a closed connection held.
func (b *bench) leftIn(queue string) (left int, err error) {
	time.Sleep(200 * time.Millisecond)
	left, _, err = testenv.QueueState(b.amqpURL, queue)
	return left, err
}

// fillQueues spreads the messages over the queues, a message and its duplicates
// into the same one. drop is never nil.
func (b *bench) fillQueues(ctx context.Context, s scenario, order []int, base int) (queues []string, drop func() error, err error) {
	drop = func() error {
		var errs []error
		for _, q := range queues {
			errs = append(errs, deleteQueue(b.amqpURL, q))
		}
		return errors.Join(errs...)
	}
	n := max(1, s.Consumers)
	shares := make([][]int, n)
	for _, number := range order {
		i := number % n
		shares[i] = append(shares[i], base+number)
	}
	for _, share := range shares {
		q := testenv.UniqueName("bench")
		queues = append(queues, q)
		if err := fill(ctx, b.amqpURL, q, s.Queue, share, s.Size); err != nil {
			return queues, drop, err
		}
	}
	return queues, drop, nil
}

// newStore returns the URL of the store for a run of inboxd.
func (b *bench) newStore(ctx context.Context, p program, dir string, store inboxStore) (url string, drop func() error, err error) {
	drop = func() error { return nil }
	switch {
	case store.url != "":
		return store.url, drop, nil
	case p.store == "postgres":
		return b.createDatabase(ctx)
	default:
		return "sqlite:" + filepath.Join(dir, "inboxd.db"), drop, nil
	}
}

// newRows makes the database of a handler that commits a row for each message,
// with the table that inboxd prints for it. The URL is empty where p has none.
func (b *bench) newRows(ctx context.Context, p program) (url string, drop func() error, err error) {
	if !p.rows {
		return "", func() error { return nil }, nil
	}
	schema, err := exec.CommandContext(ctx, b.inboxd, "schema", "shared").Output()
	if err != nil {
		return "", nil, fmt.Errorf("inboxd schema shared: %w", err)
	}
	if url, drop, err = b.createDatabase(ctx); err != nil {
		return "", nil, err
	}
	err = b.withDatabase(ctx, url, func(db *pgx.Conn) error {
		_, err := db.Exec(ctx, string(schema))
		return err
	})
	if err != nil {
		return "", nil, errors.Join(fmt.Errorf("creating the inbox table: %w", err), drop())
	}
	return url, drop, nil
}

// checkpoint levels the ground: after one, PostgreSQL writes whole pages.
func (b *bench) checkpoint(ctx context.Context) error {
	return b.withDatabase(ctx, b.databaseURL, func(db *pgx.Conn) error {
		_, err := db.Exec(ctx, "CHECKPOINT")
		return err
	})
}

// startProgram starts all replicas. What was started before an error is
// returned too.
func (b *bench) startProgram(dir string, p program, s scenario, t task) (running []*process, err error) {
	replicas := max(1, s.Replicas)
	share := s
	share.Concurrency, share.Prefetch = max(1, s.Concurrency/replicas), max(1, s.Prefetch/replicas)
	for i := range replicas {
		if t.metrics, err = freeAddr(); err != nil {
			return running, err
		}
		t.dir = filepath.Join(dir, fmt.Sprint("replica", i))
		if err := os.Mkdir(t.dir, 0o755); err != nil {
			return running, err
		}
		path, args, err := p.args(b, share, t)
		if err != nil {
			return running, err
		}
		proc, err := startProcess(t.dir, p.name, nil, path, args...)
		if err != nil {
			return running, err
		}
		running = append(running, proc)
	}
	return running, nil
}

func stopAll(running []*process) error {
	var errs []error
	for _, p := range running {
		errs = append(errs, p.stop())
	}
	return errors.Join(errs...)
}

// handlerProcess is the running handler.
type handlerProcess struct {
	*process
	addr string
}

func (b *bench) startHandler(dir string, messages int, delay time.Duration, latency bool, rowsURL string) (*handlerProcess, error) {
	h := &handlerProcess{}
	var err error
	h.process, err = startProcess(dir, "handler", &h.addr, b.self, "handler",
		"-messages", fmt.Sprint(messages), "-delay", delay.String(), fmt.Sprint("-latency=", latency), "-rows", rowsURL)
	return h, err
}

func (h *handlerProcess) target() string { return "http://" + h.addr + "/messages" }

func (h *handlerProcess) stats() (s handlerStats, err error) {
	return s, h.get("/stats", &s)
}

func (h *handlerProcess) get(path string, v any) error {
	client := http.Client{Timeout: 10 * time.Second}
	resp, err := client.Get("http://" + h.addr + path)
	if err != nil {
		return fmt.Errorf("asking the handler: %w", err)
	}
	defer resp.Body.Close()
	return json.NewDecoder(resp.Body).Decode(v)
}

// await returns when the handler has seen all there is to see, or with a
// problem when a program ends or nothing moves any more.
func (h *handlerProcess) await(ctx context.Context, running []*process, total, unique int, dedups bool) (s handlerStats, problem string) {
	const patience = 20 * time.Second
	want := int64(total)
	if dedups {
		want = int64(unique)
	}
	moved := time.Now()
	for ctx.Err() == nil {
		sleep(ctx, 100*time.Millisecond)
		now, err := h.stats()
		if err != nil {
			return s, err.Error()
		}
		if now.Requests != s.Requests {
			moved = time.Now()
		}
		s = now
		if s.Requests >= want {
			return s, ""
		}
		for _, p := range running {
			if err := p.exited(); err != nil {
				return s, err.Error()
			}
		}
		if time.Since(moved) > patience {
			return s, fmt.Sprintf("nothing moved for %v after %d requests: %s", patience, s.Requests, lastLines(running[0].log, 1))
		}
	}
	return s, ctx.Err().Error()
}

// The processes whose cost is told apart.
const (
	daemonCost   = "daemon"
	brokerCost   = "broker"
	databaseCost = "database"
	handlerCost  = "handler"
)

var costs = []string{daemonCost, brokerCost, databaseCost, handlerCost}

func (b *bench) cpu(h *handlerProcess, running []*process) map[string]time.Duration {
	used := map[string]time.Duration{
		brokerCost: cpuTime(b.brokerPID), databaseCost: cpuTime(b.dbPID), handlerCost: cpuTime(h.pid()),
	}
	for _, p := range running {
		used[daemonCost] += cpuTime(p.pid())
	}
	return used
}

func perThousand(before, after map[string]time.Duration, messages int) map[string]float64 {
	cost := map[string]float64{}
	for _, name := range costs {
		cost[name] = (after[name] - before[name]).Seconds() * 1000 / (float64(messages) / 1000)
	}
	return cost
}

func peaks(h *handlerProcess, running []*process) map[string]int64 {
	peak := map[string]int64{}
	peak[handlerCost], _ = memory(h.pid())
	for _, p := range running {
		n, _ := memory(p.pid())
		peak[daemonCost] += n
	}
	return peak
}

func firstOf(texts ...string) string {
	for _, t := range texts {
		if t != "" {
			return t
		}
	}
	return ""
}
