package forward

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/inboxd/inboxd/internal/inbox"
)

type metrics struct {
	requests map[inbox.Verdict]prometheus.Counter
	repeats  prometheus.Counter
	duration prometheus.Observer
}

// newMetrics registers the metrics of one consumer. The Forwarders of a daemon
// share reg, each with its own consumer name.
func newMetrics(reg prometheus.Registerer, consumer string, b *breaker) (*metrics, error) {
	requests, err := register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "inboxd_forward_requests_total",
		Help: "Requests to the application by what came of them.",
	}, []string{"consumer", "result"}))
	if err != nil {
		return nil, err
	}
	repeats, err := register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "inboxd_forward_repeats_total",
		Help: "Requests repeated at once because the application had closed the kept-alive connection.",
	}, []string{"consumer"}))
	if err != nil {
		return nil, err
	}
	duration, err := register(reg, prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "inboxd_forward_duration_seconds",
		Help:    "Time from the start of a request to the end of its answer.",
		Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
	}, []string{"consumer"}))
	if err != nil {
		return nil, err
	}
	for _, g := range breakerGauges(consumer, b) {
		if err := reg.Register(g); err != nil {
			return nil, fmt.Errorf("registering metrics of consumer %s: %w", consumer, err)
		}
	}
	m := &metrics{
		requests: map[inbox.Verdict]prometheus.Counter{},
		repeats:  repeats.WithLabelValues(consumer),
		duration: duration.WithLabelValues(consumer),
	}
	for _, v := range inbox.Verdicts {
		if v != inbox.NotSent {
			m.requests[v] = requests.WithLabelValues(consumer, v.String())
		}
	}
	return m, nil
}

// breakerGauges are computed when they are asked for.
func breakerGauges(consumer string, b *breaker) []prometheus.Collector {
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: name, Help: help, ConstLabels: prometheus.Labels{"consumer": consumer},
		}, value)
	}
	return []prometheus.Collector{
		gauge("inboxd_in_flight", "Requests in flight.", func() float64 {
			n, _ := b.load()
			return float64(n)
		}),
		gauge("inboxd_oldest_in_flight_seconds", "Age of the oldest request in flight.", func() float64 {
			_, oldest := b.load()
			return oldest.Seconds()
		}),
		gauge("inboxd_breaker_open", "1 while the breaker lets no request go.", func() float64 {
			if b.snapshot().state == BreakerOpen {
				return 1
			}
			return 0
		}),
	}
}

// register registers c, or returns what is registered already under its name.
func register[C prometheus.Collector](reg prometheus.Registerer, c C) (C, error) {
	err := reg.Register(c)
	var twice prometheus.AlreadyRegisteredError
	if errors.As(err, &twice) {
		if old, ok := twice.ExistingCollector.(C); ok {
			return old, nil
		}
	}
	if err != nil {
		return c, fmt.Errorf("registering metrics: %w", err)
	}
	return c, nil
}

func (m *metrics) count(v inbox.Verdict, took time.Duration) {
	if c := m.requests[v]; c != nil {
		c.Inc()
	}
	if v.Sent() {
		m.duration.Observe(took.Seconds())
	}
}
