package main

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
)

// storeWatch keeps the gates shut while the store does not work, so that the
// consumers are cancelled and their deliveries go back to replicas whose store
// may.
type storeWatch struct {
	healthy func(context.Context) error

	mu  sync.Mutex
	err error
}

const (
	// watchEvery is how often a store that fails is asked; one that works is asked
	// half as often. On PostgreSQL each is a commit, most of what an idle daemon
	// does there.
	watchEvery = time.Second
	// watchPatience is how long the store may fail before consuming stops:
	// deliveries in hand wait for it that long without any harm.
	watchPatience = 5 * time.Second
	watchTimeout  = 3 * time.Second
)

func (w *storeWatch) state() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// watch asks the store until ctx ends.
func (w *storeWatch) watch(ctx context.Context, log *slog.Logger, gates []*inbox.Gate) {
	var since time.Time // of the failure; zero while it works
	shut := false
	for {
		hctx, cancel := context.WithTimeout(ctx, watchTimeout)
		err := w.healthy(hctx)
		cancel()
		if ctx.Err() != nil {
			return
		}
		w.mu.Lock()
		w.err = err
		w.mu.Unlock()
		switch {
		case err == nil && shut:
			log.Info("the store works again", "outage", time.Since(since).Round(time.Second))
			for _, g := range gates {
				g.Open(inbox.HindranceStore)
			}
			shut = false
			since = time.Time{}
		case err == nil:
			since = time.Time{}
		case since.IsZero():
			since = time.Now()
			log.Warn("the store does not work; nothing is forwarded", "err", err)
		case !shut && time.Since(since) >= watchPatience:
			log.Error("the store still does not work; consuming stops until it does", "err", err)
			for _, g := range gates {
				g.Shut(inbox.HindranceStore, err.Error())
			}
			shut = true
		}
		pause := watchEvery
		if err == nil {
			pause *= 2
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// bothHealthy is the health of a store on two databases.
func bothHealthy(a, b func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := a(ctx); err != nil {
			return err
		}
		return b(ctx)
	}
}
