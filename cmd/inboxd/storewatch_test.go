package main

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
)

func TestConsumingStopsWhileEitherDatabaseIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var away [2]atomic.Bool
		ask := func(i int) func(context.Context) error {
			return func(context.Context) error {
				if away[i].Load() {
					return errors.New("away")
				}
				return nil
			}
		}
		w, gate := &storeWatch{healthy: bothHealthy(ask(0), ask(1))}, inbox.NewGate()
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go w.watch(ctx, slog.New(slog.DiscardHandler), []*inbox.Gate{gate})
		for i := range away {
			away[i].Store(true)
			time.Sleep(watchPatience / 2)
			if !gate.IsOpen() {
				t.Error("shut at once, want some patience")
			}
			time.Sleep(watchPatience)
			if c, _ := gate.State(); len(c) != 1 || c[0].Hindrance != inbox.HindranceStore {
				t.Errorf("database %d away: got %v, want the store", i, c)
			}
			away[i].Store(false)
			time.Sleep(2 * watchEvery)
			if !gate.IsOpen() {
				t.Error("still shut, want open")
			}
		}
	})
}
