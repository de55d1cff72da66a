package admin

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/inboxd/inboxd/internal/inbox"
)

// Options are what the endpoints show and do. Functions are called
// concurrently; those without a context must not block.
type Options struct {
	Version string
	Log     *slog.Logger

	// Life tells the daemon's stage. Nil means running.
	Life func() Life
	// Alive is the internal watchdog behind /livez: nil while the daemon's own
	// loops turn. It must not look at broker, store or handler. Nil: always.
	Alive func() error
	// StrictReadiness makes /readyz follow /consuming.
	StrictReadiness bool
	// Gatherer feeds /metrics.
	Gatherer prometheus.Gatherer

	// Consumers returns the state of every consumer, in a stable order.
	Consumers func() []ConsumerStatus
	// Store returns the state of the store. Optional.
	Store func() StoreStatus
	// InFlight returns the deliveries of key that this process holds now.
	// Optional.
	InFlight func(key inbox.Key) []Flight

	Desk inbox.Desk
	// Parker takes imported messages: the store's Shelf.
	Parker inbox.Parker
	// Replayed tells the consumer that a message has become due. Optional.
	Replayed func(consumer string)

	// Pause and Resume keep a consumer from consuming, across restarts.
	Pause  func(ctx context.Context, consumer, why string) error
	Resume func(ctx context.Context, consumer string) error
	// Drain starts draining, where that has not begun, and waits for its end.
	// ctx bounds the waiting only: draining goes on without the caller.
	Drain func(ctx context.Context) error
	// DrainLimit bounds the waiting of POST /drain. Default 25s.
	DrainLimit time.Duration

	// TokenFile holds the bearer tokens, one a line: `TOKEN` or `NAME TOKEN`.
	// It is read again at every request. "" lets everybody in who can connect.
	TokenFile string
	// Hosts are names, besides IP addresses and localhost, that browsers may
	// reach the page by without a token.
	Hosts []string
}

// Admin serves the endpoints. Safe for concurrent use.
type Admin struct {
	Options

	started time.Time
	secret  []byte // signs sessions and form tokens; new at each start
	samples *samples
	jobs    *jobs
	refusal gate

	handler http.Handler
	health  http.Handler
	routes  []string
}

// New returns the endpoints of one daemon. Nothing runs until Run.
func New(o Options) (*Admin, error) {
	switch {
	case o.Log == nil:
		return nil, errors.New("admin: no logger")
	case o.Desk == nil || o.Parker == nil:
		return nil, errors.New("admin: no store")
	case o.Consumers == nil:
		return nil, errors.New("admin: no state of consumers")
	case o.Pause == nil || o.Resume == nil || o.Drain == nil:
		return nil, errors.New("admin: no pause, resume or drain")
	}
	if o.Life == nil {
		o.Life = func() Life { return LifeRunning }
	}
	if o.Alive == nil {
		o.Alive = func() error { return nil }
	}
	if o.Store == nil {
		o.Store = func() StoreStatus { return StoreStatus{OK: true} }
	}
	if o.InFlight == nil {
		o.InFlight = func(inbox.Key) []Flight { return nil }
	}
	if o.Replayed == nil {
		o.Replayed = func(string) {}
	}
	if o.Gatherer == nil {
		o.Gatherer = prometheus.NewRegistry()
	}
	if o.DrainLimit <= 0 {
		o.DrainLimit = 25 * time.Second
	}
	state := o.Store
	o.Store = func() StoreStatus {
		s := state()
		s.Retention = tidyDuration(s.Retention)
		return s
	}
	a := &Admin{Options: o, started: time.Now(), secret: make([]byte, 32)}
	_, _ = rand.Read(a.secret) // never fails: crypto/rand ends the program instead
	a.samples = newSamples()
	a.jobs = newJobs(o)
	a.handler, a.health = a.buildHandler(), a.buildHealth()
	return a, nil
}

// Run samples the consumers for the page's charts and carries the replays and
// discards by filter, until ctx ends. It returns nil after the last of them has
// stopped.
func (a *Admin) Run(ctx context.Context) error {
	a.jobs.start(ctx)
	defer a.jobs.wait()
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	a.samples.add(time.Now(), a.Consumers())
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			a.samples.add(now, a.Consumers())
		}
	}
}

// Handler is the admin side: page, API, drain.
func (a *Admin) Handler() http.Handler { return a.handler }

func (a *Admin) hasConsumer(name string) bool {
	for _, c := range a.Consumers() {
		if c.Name == name {
			return true
		}
	}
	return false
}

// tidyDuration takes the zeros off a time.Duration's text: 168h, not 168h0m0s.
func tidyDuration(s string) string {
	if t, ok := strings.CutSuffix(s, "m0s"); ok {
		s = t + "m"
	}
	if t, ok := strings.CutSuffix(s, "h0m"); ok {
		s = t + "h"
	}
	return s
}
