package main

import (
	"context"
	"fmt"
	"time"

	"github.com/inboxd/inboxd/internal/admin"
	"github.com/inboxd/inboxd/internal/config"
	"github.com/inboxd/inboxd/internal/inbox"
	"github.com/inboxd/inboxd/internal/store"
)

// endpoints builds the admin side on top of the running parts.
func (d *daemon) endpoints(st store.Store) (*admin.Admin, error) {
	return admin.New(admin.Options{
		Version:         buildInfo().version,
		Log:             d.log,
		Life:            func() admin.Life { return d.life.Load().(admin.Life) },
		StrictReadiness: d.cfg.Readyz == config.ReadyzStrict,
		Gatherer:        d.reg,
		Consumers: func() []admin.ConsumerStatus {
			all := make([]admin.ConsumerStatus, len(d.lines))
			for i, l := range d.lines {
				all[i] = l.status()
			}
			return all
		},
		Store: func() admin.StoreStatus {
			s := admin.StoreStatus{Kind: "postgres", OK: true, Retention: d.cfg.Store.Retention.String()}
			if isEmbedded(d.cfg) {
				s.Kind = "sqlite"
			}
			if err := d.store.state(); err != nil {
				s.OK, s.Why = false, err.Error()
			}
			return s
		},
		InFlight: func(key inbox.Key) []admin.Flight {
			if l := d.line(key.Consumer); l != nil {
				if since, ok := l.processor.InFlight(key.ID); ok {
					return []admin.Flight{{Since: since}}
				}
			}
			return nil
		},
		Desk:   st,
		Parker: st,
		Replayed: func(name string) {
			if l := d.line(name); l != nil {
				l.processor.WakeDue()
			}
		},
		Pause: func(ctx context.Context, name, why string) error { return d.setPaused(ctx, st, name, true, why) },
		Resume: func(ctx context.Context, name string) error {
			return d.setPaused(ctx, st, name, false, "")
		},
		Drain: func(ctx context.Context) error {
			go d.drain()
			select {
			case <-d.drained:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		},
		DrainLimit: d.cfg.ShutdownTimeout + 5*time.Second,
		TokenFile:  d.cfg.Admin.TokenFile,
		Hosts:      d.cfg.Admin.AllowedHosts,
	})
}

func (d *daemon) line(name string) *line {
	for _, l := range d.lines {
		if l.cfg.Name == name {
			return l
		}
	}
	return nil
}

// setPaused stores the pause before it takes effect, so that one that was
// confirmed survives a restart.
func (d *daemon) setPaused(ctx context.Context, st store.Store, name string, paused bool, why string) error {
	l := d.line(name)
	if l == nil {
		return inbox.ErrNotFound
	}
	if err := st.SetPaused(ctx, name, paused, why); err != nil {
		return fmt.Errorf("storing the pause: %w", err)
	}
	if paused {
		l.gate.Shut(inbox.HindrancePaused, why)
	} else {
		l.gate.Open(inbox.HindrancePaused)
	}
	return nil
}

// keepPause stores a pause that the handler's 410 asked for; the gate is shut
// already. Where the store fails the pause lasts until a restart, whose first
// request will be answered 410 again.
func (d *daemon) keepPause(st store.Store, name, why string) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := st.SetPaused(ctx, name, true, why); err != nil {
		d.log.Warn("the pause could not be stored", "consumer", name, "err", err)
	}
}
