package inbox

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the counters of one consumer's Processor.
type Metrics struct {
	outcomes     [outcomeCount]outcomeCounter
	parked       map[ParkReason]prometheus.Counter
	mismatches   prometheus.Counter
	unkeyed      prometheus.Counter
	parkFailures prometheus.Counter
	duplicateAge prometheus.Observer
	requests     atomic.Uint64
}

// MetricVecs are the metrics of all consumers, registered once.
type MetricVecs struct {
	deliveries, parked, mismatches, unkeyed, parkFailures *prometheus.CounterVec
	duplicateAge                                          *prometheus.HistogramVec
}

// NewMetrics registers the processing metrics.
func NewMetrics(reg prometheus.Registerer) *MetricVecs {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, append([]string{"consumer"}, labels...))
		reg.MustRegister(c)
		return c
	}
	age := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "inboxd_duplicate_age_seconds",
		Help: "How long before a suppressed duplicate its message was recorded. Ages near the retention say that it is too short.",
		// 1 s to 30 days.
		Buckets: []float64{1, 10, 60, 600, 3600, 6 * 3600, 86400, 3 * 86400, 7 * 86400, 14 * 86400, 30 * 86400},
	}, []string{"consumer"})
	reg.MustRegister(age)
	return &MetricVecs{
		deliveries:   counter("inboxd_deliveries_total", "Deliveries by how their way ended.", "outcome"),
		parked:       counter("inboxd_parked_total", "Messages parked, by reason.", "reason"),
		mismatches:   counter("inboxd_mismatches_total", "Messages with a recorded ID and another body."),
		unkeyed:      counter("inboxd_forwarded_without_id_total", "Messages without an ID that were forwarded without deduplication."),
		parkFailures: counter("inboxd_park_failures_total", "Failed tries to park or defer a message; each is repeated."),
		duplicateAge: age,
	}
}

// For returns the metrics of one consumer, every series created.
func (v *MetricVecs) For(consumer string) *Metrics {
	m := &Metrics{
		parked:       make(map[ParkReason]prometheus.Counter),
		mismatches:   v.mismatches.WithLabelValues(consumer),
		unkeyed:      v.unkeyed.WithLabelValues(consumer),
		parkFailures: v.parkFailures.WithLabelValues(consumer),
		duplicateAge: v.duplicateAge.WithLabelValues(consumer),
	}
	for _, o := range Outcomes {
		m.outcomes[o].counter = v.deliveries.WithLabelValues(consumer, o.String())
	}
	for _, r := range ParkReasons {
		m.parked[r] = v.parked.WithLabelValues(consumer, r.String())
	}
	return m
}

// outcomeCounter counts twice: a Prometheus counter cannot be read back
// cheaply, and the status page wants to.
type outcomeCounter struct {
	n       atomic.Uint64
	counter prometheus.Counter
}

// Counts returns the deliveries so far by outcome.
func (m *Metrics) Counts() map[Outcome]uint64 {
	n := make(map[Outcome]uint64, len(Outcomes))
	for _, o := range Outcomes {
		n[o] = m.outcomes[o].n.Load()
	}
	return n
}

// Requests returns the number of requests so far.
func (m *Metrics) Requests() uint64 { return m.requests.Load() }

func (m *Metrics) count(r Result) {
	o := &m.outcomes[r.Outcome]
	o.n.Add(1)
	o.counter.Inc()
	if r.Outcome == Parked {
		m.parked[r.Reason].Inc()
	}
}
