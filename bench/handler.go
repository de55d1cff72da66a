package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/valyala/fasthttp"
)

// handlerStats is what the handler process saw. Times are Unix nanoseconds: the
// processes of a run share one clock.
type handlerStats struct {
	Requests int64 `json:"requests"`
	Unique   int64 `json:"unique"`
	First    int64 `json:"first"`
	Last     int64 `json:"last"`
	// LastNew is the time of the last request with a message not seen before.
	LastNew int64 `json:"last_new"`
	// Foreign counts requests without a message number of ours.
	Foreign int64 `json:"foreign"`
}

// handler counts the requests for each message. It is as lean as it can be made
// (fasthttp, no locks), since whatever it burns is missing to the program under
// test.
type handler struct {
	rows      *pgxpool.Pool // nil: no row is written
	delay     time.Duration
	seen      []atomic.Uint32
	requests  atomic.Int64
	unique    atomic.Int64
	foreign   atomic.Int64
	first     atomic.Int64
	last      atomic.Int64
	lastNew   atomic.Int64
	latencyMu sync.Mutex
	latencies []int64
}

func runHandler(ctx context.Context, args []string, stdout io.Writer) error {
	fs := flag.NewFlagSet("handler", flag.ContinueOnError)
	messages := fs.Int("messages", 0, "number of different messages")
	delay := fs.Duration("delay", 0, "time that each request takes")
	rows := fs.String("rows", "", "PostgreSQL `URL` to commit a row for each message to")
	latency := fs.Bool("latency", false, "keep the age of each message at its first request")
	if err := parseFlags(fs, args); err != nil {
		return err
	}
	h := &handler{delay: *delay, seen: make([]atomic.Uint32, *messages)}
	if *latency {
		h.latencies = make([]int64, 0, *messages)
	}
	if *rows != "" {
		// As many connections as a service of this size would have.
		c, err := pgxpool.ParseConfig(*rows)
		if err != nil {
			return fmt.Errorf("-rows: %w", err)
		}
		c.MaxConns = 16
		if h.rows, err = pgxpool.NewWithConfig(ctx, c); err != nil {
			return fmt.Errorf("-rows: %w", err)
		}
		defer h.rows.Close()
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listening: %w", err)
	}
	srv := &fasthttp.Server{
		Handler:            h.serve,
		MaxRequestBodySize: 64 << 20,
		NoDefaultDate:      true,
		CloseOnShutdown:    true,
	}
	fmt.Fprintln(stdout, ln.Addr())
	stopped := context.AfterFunc(ctx, func() { _ = ln.Close() })
	defer stopped()
	if err := srv.Serve(ln); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serving: %w", err)
	}
	return nil
}

func (h *handler) serve(ctx *fasthttp.RequestCtx) {
	switch string(ctx.Path()) {
	case "/messages":
		h.count(ctx)
	case "/stats":
		h.writeJSON(ctx, handlerStats{
			Requests: h.requests.Load(), Unique: h.unique.Load(), Foreign: h.foreign.Load(),
			First: h.first.Load(), Last: h.last.Load(), LastNew: h.lastNew.Load(),
		})
	case "/latencies":
		h.latencyMu.Lock()
		defer h.latencyMu.Unlock()
		h.writeJSON(ctx, h.latencies)
	case "/healthz":
	default:
		ctx.SetStatusCode(fasthttp.StatusNotFound)
	}
}

func (h *handler) count(ctx *fasthttp.RequestCtx) {
	now := time.Now().UnixNano()
	if h.delay > 0 {
		time.Sleep(h.delay)
	}
	if h.rows != nil && !h.commitRow(ctx) {
		ctx.SetStatusCode(fasthttp.StatusInternalServerError)
		return
	}
	h.first.CompareAndSwap(0, now)
	storeMax(&h.last, now)
	h.requests.Add(1)
	n, ok := messageNumber(ctx.Request.Header.Peek("Idempotency-Key"))
	if !ok || n >= len(h.seen) {
		h.foreign.Add(1)
	} else if h.seen[n].Add(1) == 1 {
		h.unique.Add(1)
		storeMax(&h.lastNew, now)
		h.keepLatency(now, ctx.PostBody())
	}
	ctx.SetStatusCode(fasthttp.StatusNoContent)
}

// commitRow does what a handler in shared mode does, its own business aside: the
// key is committed before the answer.
func (h *handler) commitRow(ctx *fasthttp.RequestCtx) bool {
	consumer := string(ctx.Request.Header.Peek("Inbox-Consumer"))
	if consumer == "" {
		consumer = "none"
	}
	_, err := h.rows.Exec(context.Background(), "insert into inbox (consumer, message_id) values ($1, $2) on conflict do nothing",
		consumer, string(ctx.Request.Header.Peek("Idempotency-Key")))
	return err == nil
}

func (h *handler) keepLatency(now int64, body []byte) {
	if h.latencies == nil {
		return
	}
	sent, ok := publishedAt(body)
	if !ok {
		return
	}
	h.latencyMu.Lock()
	h.latencies = append(h.latencies, now-sent)
	h.latencyMu.Unlock()
}

func (h *handler) writeJSON(ctx *fasthttp.RequestCtx, v any) {
	ctx.SetContentType("application/json")
	if err := json.NewEncoder(ctx).Encode(v); err != nil {
		ctx.SetStatusCode(fasthttp.StatusInternalServerError)
	}
}

func storeMax(a *atomic.Int64, v int64) {
	for {
		old := a.Load()
		if v <= old || a.CompareAndSwap(old, v) {
			return
		}
	}
}
