package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"

	"github.com/inboxd/inboxd/internal/admin"
	"github.com/inboxd/inboxd/internal/config"
	"github.com/inboxd/inboxd/internal/forward"
	"github.com/inboxd/inboxd/internal/inbox"
	"github.com/inboxd/inboxd/internal/store"
	"github.com/inboxd/inboxd/internal/store/sqlite"
)

// daemon is one run of inboxd: the parts, and the order in which they live and
// end.
type daemon struct {
	cfg config.Config
	log *slog.Logger
	reg *prometheus.Registry

	// tune, where set, changes what has no key in the configuration: how long the
	// breaker takes for things.
	tune func(*forward.Options)

	store storeWatch
	lines []*line // one a consumer
	life  atomic.Value
	// stop ends the grace: bookkeeping after a 2xx is given up.
	stop     chan struct{}
	draining sync.Once
	drained  chan struct{}
}

// adminGrace is how long the endpoints outlive everything else, so that probes
// and a waiting `inboxd drain` see the end.
const adminGrace = 2 * time.Second

func newDaemon(cfg config.Config, log *slog.Logger) *daemon {
	d := &daemon{
		cfg: cfg, log: log, reg: prometheus.NewRegistry(),
		stop: make(chan struct{}), drained: make(chan struct{}),
	}
	d.life.Store(admin.LifeRunning)
	d.reg.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	b := buildInfo()
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "inboxd_build_info", Help: "Always 1; the labels say what is running.",
		ConstLabels: prometheus.Labels{"version": b.version, "revision": b.revision, "goversion": b.goVersion},
	})
	info.Set(1)
	d.reg.MustRegister(info)
	return d
}

// run lives until ctx ends: listeners, store, consumers, in that order, and down
// in the other. The listeners come first and go last, so that probes have an
// answer all the time and an outage of the store or the broker at start is
// waited out instead of crashed on.
func (d *daemon) run(ctx context.Context) error {
	front, err := d.listen(ctx)
	if err != nil {
		return err
	}
	// What follows outlives ctx, for the drain.
	outer, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	servers, sctx := errgroup.WithContext(outer)
	front.serve(sctx, servers)

	// A listener that fails ends the daemon like a signal would.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	context.AfterFunc(sctx, func() { cancel(context.Cause(sctx)) })

	err = d.serve(ctx, front)
	if err != nil {
		d.log.Error("inboxd ends with an error", "err", err)
	}
	end()
	return errors.Join(err, servers.Wait())
}

// serve is the life between the listeners' start and end.
func (d *daemon) serve(ctx context.Context, front *front) error {
	st, err := d.openStore(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil // told to stop before the store was there
		}
		return err
	}
	defer func() {
		if err := st.Close(); err != nil {
			d.log.Warn("closing the store", "err", err)
		}
	}()
	d.store.healthy = st.Healthy
	defer d.closeLines()
	if err := d.buildLines(ctx, st); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	endpoints, err := d.endpoints(st)
	if err != nil {
		return err
	}
	front.ready(endpoints)

	// The parts run on a context of their own: a signal drains them first.
	work, halt := context.WithCancel(context.WithoutCancel(ctx))
	defer halt()
	group, gctx := errgroup.WithContext(work)
	group.Go(func() error { return endpoints.Run(gctx) })
	upkeep, endUpkeep := context.WithCancel(context.WithoutCancel(ctx))
	defer endUpkeep()
	kept := make(chan error, 1)
	go func() { kept <- st.Run(upkeep) }()
	d.watchStores(gctx, group, st)
	for _, l := range d.lines {
		l.run(gctx, group)
	}
	d.log.Info("inboxd runs", "version", buildInfo().version, "store", st.Describe(), "consumers", len(d.lines),
		"metrics", d.cfg.Metrics.Listen, "admin", d.cfg.Admin.Listen)

	select {
	case <-ctx.Done():
		d.log.Info("inboxd stops", "reason", context.Cause(ctx).Error())
	case <-gctx.Done(): // a part failed; the others still end in order
	}
	began := time.Now()
	d.drain()
	halt()
	err = group.Wait()
	endUpkeep()
	err = errors.Join(err, ignoreCanceled(<-kept))
	d.log.Info("inboxd stopped", "duration", time.Since(began).Round(time.Millisecond))
	return err
}

func ignoreCanceled(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// drain stops consuming everywhere and waits for what is in hand, at most
// shutdown_timeout, after which requests in flight are cut and their messages
// left to the broker. It returns at once where it was called before and has
// ended, and waits with the first caller otherwise.
func (d *daemon) drain() {
	d.draining.Do(func() {
		defer close(d.drained)
		d.life.Store(admin.LifeDraining)
		grace := time.AfterFunc(d.cfg.ShutdownTimeout, func() {
			d.log.Warn("shutdown_timeout is over; requests in flight are cut, and their messages come again",
				"shutdown_timeout", d.cfg.ShutdownTimeout)
			close(d.stop)
			for _, l := range d.lines {
				l.forwarder.Kill()
			}
		})
		defer grace.Stop()
		for _, g := range d.gates() {
			g.Shut(inbox.HindranceDraining, "the daemon drains")
		}
		for _, l := range d.lines {
			l.awaitIdle(d.stop)
		}
		d.life.Store(admin.LifeDrained)
		d.log.Info("drained")
	})
	<-d.drained
}

// watchStores keeps the gates by the health of the store. A line in shared mode
// needs the service's database besides.
func (d *daemon) watchStores(ctx context.Context, g *errgroup.Group, st store.Store) {
	var gates []*inbox.Gate
	for _, l := range d.lines {
		if l.shared == nil {
			gates = append(gates, l.gate)
			continue
		}
		w := &storeWatch{healthy: bothHealthy(st.Healthy, l.shared.Healthy)}
		g.Go(func() error { w.watch(ctx, d.log.With("consumer", l.cfg.Name), []*inbox.Gate{l.gate}); return nil })
	}
	g.Go(func() error { d.store.watch(ctx, d.log, gates); return nil })
}

func (d *daemon) gates() []*inbox.Gate {
	gates := make([]*inbox.Gate, len(d.lines))
	for i, l := range d.lines {
		gates[i] = l.gate
	}
	return gates
}

// openRetryMax bounds the pause between two tries to open the store.
const openRetryMax = 10 * time.Second

// openStore waits for a store that is not there yet; one that is set up wrongly
// is an error at once.
func (d *daemon) openStore(ctx context.Context) (store.Store, error) {
	pause := 200 * time.Millisecond
	for {
		st, err := openStore(ctx, d.cfg, d.log, d.reg)
		if err == nil {
			return st, nil
		}
		if errors.Is(err, store.ErrSetup) || errors.Is(err, sqlite.ErrInUse) || ctx.Err() != nil {
			return nil, fmt.Errorf("store: %w", err)
		}
		d.log.Warn("the store cannot be opened yet; nothing is consumed", "err", err, "next_try_in", pause)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		pause = min(2*pause, openRetryMax)
	}
}

func (d *daemon) listen(ctx context.Context) (*front, error) {
	f := &front{d: d}
	var errs []error
	var lc net.ListenConfig
	open := func(key, addr string) net.Listener {
		if addr == "" {
			return nil
		}
		ln, err := lc.Listen(ctx, "tcp", addr)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", key, err))
		}
		return ln
	}
	f.metrics = open("metrics.listen", d.cfg.Metrics.Listen)
	f.admin = open("admin.listen", d.cfg.Admin.Listen)
	if err := errors.Join(errs...); err != nil {
		for _, ln := range []net.Listener{f.metrics, f.admin} {
			if ln != nil {
				_ = ln.Close()
			}
		}
		return nil, err
	}
	return f, nil
}
