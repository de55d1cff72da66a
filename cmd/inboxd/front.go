package main

import (
	"context"
	"net"
	"net/http"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"

	"github.com/inboxd/inboxd/internal/admin"
	"github.com/inboxd/inboxd/internal/config"
)

// front is the pair of listeners. Until the store is open it answers for
// itself: alive, ready (a store that is late must not take the pod's other
// container out of service), not consuming.
type front struct {
	d              *daemon
	metrics, admin net.Listener // nil where switched off
	endpoints      atomic.Pointer[admin.Admin]
}

func (f *front) ready(a *admin.Admin) { f.endpoints.Store(a) }

func (f *front) serve(ctx context.Context, g *errgroup.Group) {
	if f.metrics != nil {
		early := f.early()
		g.Go(func() error {
			return admin.Serve(ctx, f.metrics, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if a := f.endpoints.Load(); a != nil {
					a.HealthHandler().ServeHTTP(w, r)
					return
				}
				early.ServeHTTP(w, r)
			}), adminGrace, f.d.log)
		})
	}
	if f.admin != nil {
		g.Go(func() error {
			return admin.Serve(ctx, f.admin, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if a := f.endpoints.Load(); a != nil {
					a.Handler().ServeHTTP(w, r)
					return
				}
				w.Header().Set("Content-Type", "application/problem+json")
				w.Header().Set("Retry-After", "1")
				w.WriteHeader(http.StatusServiceUnavailable)
				_, _ = w.Write([]byte(`{"title":"Service Unavailable","status":503,"detail":"the store is not open yet; the log says why"}` + "\n"))
			}), adminGrace, f.d.log)
		})
	}
}

// early is the metrics side before the store is open.
func (f *front) early() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(f.d.reg, promhttp.HandlerOpts{}))
	text := func(status int, s string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = w.Write([]byte(s + "\n"))
		}
	}
	mux.HandleFunc("GET /livez", text(http.StatusOK, "alive"))
	if f.d.cfg.Readyz == config.ReadyzStrict {
		mux.HandleFunc("GET /readyz", text(http.StatusServiceUnavailable, "not ready: the store is not open yet"))
	} else {
		mux.HandleFunc("GET /readyz", text(http.StatusOK, "ready"))
	}
	mux.HandleFunc("GET /consuming", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write([]byte(`{"consuming":false,"life":"starting","why":"the store is not open yet; the log says why"}` + "\n"))
	})
	return mux
}
