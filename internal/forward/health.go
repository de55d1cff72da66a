package forward

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
)

const (
	healthEvery   = time.Second
	healthTimeout = 5 * time.Second
	// healthFailures in a row shut the gate; one success opens it.
	healthFailures = 3
)

// Health is what the health URL says.
type Health string

// The values.
const (
	HealthNone    Health = ""        // there is no health URL
	HealthUnknown Health = "unknown" // not asked yet
	HealthOK      Health = "ok"
	HealthFailing Health = "failing"
)

// health asks the health URL and keeps the gate accordingly.
type health struct {
	gate *inbox.Gate
	log  *quietLog
	get  func(context.Context) error

	mu       sync.Mutex
	state    Health
	why      string
	since    time.Time
	failures int
}

func newHealth(gate *inbox.Gate, log *slog.Logger, get func(context.Context) error) *health {
	h := &health{gate: gate, log: newQuietLog(log), get: get, state: HealthUnknown, since: time.Now()}
	gate.Shut(inbox.HindranceHandler, "the health URL has not answered yet")
	return h
}

// run asks until ctx ends, at intervals with jitter.
func (h *health) run(ctx context.Context) {
	for ctx.Err() == nil {
		_ = h.ask(ctx) // notes the answer itself
		wait(ctx, nil, time.Now().Add(healthEvery*3/4+rand.N(healthEvery/2)))
	}
}

// ask asks once and returns nil for a 2xx.
func (h *health) ask(ctx context.Context) error {
	err := h.get(ctx)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if err == nil {
		h.failures = 0
		if h.state != HealthOK {
			h.log.say(slog.LevelInfo, quietFor, "handler healthy", slog.Duration("after", time.Since(h.since).Round(time.Millisecond)))
			h.set(HealthOK, "")
		}
		h.gate.Open(inbox.HindranceHandler)
		return nil
	}
	h.failures++
	h.why = err.Error()
	switch {
	case h.state == HealthFailing:
		h.gate.Shut(inbox.HindranceHandler, h.why)
	case h.state == HealthUnknown || h.failures >= healthFailures:
		h.log.say(slog.LevelWarn, quietFor, "handler not healthy", slog.String("reason", h.why))
		h.set(HealthFailing, h.why)
		h.gate.Shut(inbox.HindranceHandler, h.why)
	}
	return err
}

func (h *health) set(s Health, why string) {
	h.state, h.why, h.since = s, why, time.Now()
}

func (h *health) status() (Health, string, time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state, h.why, h.since
}

// newHealthGet returns the question itself. auth is nil where the health URL is
// another server than the target.
func newHealthGet(t target, d *dialer, auth *authorization, timeout time.Duration) func(context.Context) error {
	transport := newTransport(d, 0)
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("the health URL did not answer within %s", timeout))
		defer cancel()
		r := (&http.Request{
			Method: http.MethodGet, URL: t.url, Host: t.url.Host,
			Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
			Header: http.Header{"User-Agent": {"inboxd"}, "Accept": {"*/*"}},
		}).WithContext(ctx)
		if auth != nil {
			if v, _ := auth.header(); v != "" {
				r.Header["Authorization"] = []string{v}
			}
		}
		resp, err := transport.RoundTrip(r)
		if err != nil {
			if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
				err = cause
			}
			return fmt.Errorf("asking the health URL: %w", err)
		}
		defer resp.Body.Close()
		io.CopyN(io.Discard, resp.Body, maxExcerpt) //nolint:errcheck // the status has decided
		if resp.StatusCode/100 != 2 {
			return fmt.Errorf("the health URL answers %d", resp.StatusCode)
		}
		return nil
	}
}
