package admin

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/inboxd/inboxd/internal/inbox"
)

// Consuming is the body of GET /consuming.
type Consuming struct {
	Consuming bool                `json:"consuming"`
	Life      Life                `json:"life"`
	Consumers []ConsumerConsuming `json:"consumers"`
}

// ConsumerConsuming says whether one consumer consumes, and why it does not.
type ConsumerConsuming struct {
	Name      string          `json:"name"`
	Queue     string          `json:"queue"`
	Consuming bool            `json:"consuming"`
	Why       []inbox.Closure `json:"why,omitempty"`
}

// HealthHandler is the metrics side: /metrics, /livez, /readyz and /consuming.
// It only reads, needs no token, and tells nothing about single messages.
func (a *Admin) HealthHandler() http.Handler { return a.health }

func (a *Admin) buildHealth() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(a.Gatherer, promhttp.HandlerOpts{
		ErrorLog: promLog{a.Log}, ErrorHandling: promhttp.ContinueOnError,
		MaxRequestsInFlight: 4, Timeout: 10 * time.Second,
	}))
	mux.HandleFunc("GET /livez", a.livez)
	mux.HandleFunc("GET /readyz", a.readyz)
	mux.HandleFunc("GET /consuming", a.getConsuming)
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "inboxd\n\n/metrics\n/livez\n/readyz\n/consuming\n")
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("X-Content-Type-Options", "nosniff")
		r.Body = http.MaxBytesReader(w, r.Body, 1<<10)
		mux.ServeHTTP(w, r)
	})
}

func (a *Admin) livez(w http.ResponseWriter, _ *http.Request) {
	if err := a.Alive(); err != nil {
		verdict(w, http.StatusServiceUnavailable, "not alive: %v", err)
		return
	}
	verdict(w, http.StatusOK, "alive")
}

// readyz does not look at the broker unless told to: a sidecar's readiness is
// its pod's, and a broker outage must not take the service out of rotation.
func (a *Admin) readyz(w http.ResponseWriter, _ *http.Request) {
	switch life := a.Life(); {
	case life != LifeRunning:
		verdict(w, http.StatusServiceUnavailable, "not ready: %s", life)
	case a.StrictReadiness && !allConsuming(a.Consumers()):
		verdict(w, http.StatusServiceUnavailable, "not ready: not consuming (see /consuming)")
	default:
		verdict(w, http.StatusOK, "ready")
	}
}

func verdict(w http.ResponseWriter, status int, text string, args ...any) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, text+"\n", args...)
}

func (a *Admin) consuming() Consuming {
	c := Consuming{Life: a.Life(), Consumers: []ConsumerConsuming{}}
	cs := a.Consumers()
	c.Consuming = c.Life == LifeRunning && allConsuming(cs)
	for _, s := range cs {
		c.Consumers = append(c.Consumers, ConsumerConsuming{
			Name: s.Name, Queue: s.Queue, Consuming: s.Consuming, Why: notConsuming(s),
		})
	}
	return c
}

func (a *Admin) getConsuming(w http.ResponseWriter, _ *http.Request) {
	c, status := a.consuming(), http.StatusOK
	if !c.Consuming {
		status = http.StatusServiceUnavailable
	}
	_ = writeJSON(w, status, c)
}

// promLog writes what /metrics could not gather.
type promLog struct{ log *slog.Logger }

func (l promLog) Println(v ...any) {
	l.log.Error("gathering metrics failed", "err", fmt.Sprint(v...))
}
