package shared

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type operation uint8

const (
	opClaim operation = iota
	opEvidence
	opClean
	operations
)

func (o operation) String() string { return [...]string{"claim", "evidence", "clean"}[o] }

type result uint8

const (
	resultPresent result = iota // there at the first look
	resultLate                  // there within the grace
	resultAbsent
	resultOther // there, but of a message with another body
	results
)

func (r result) String() string { return [...]string{"present", "late", "absent", "other_body"}[r] }

type metrics struct {
	duration [operations]prometheus.Observer
	errors   [operations]prometheus.Counter
	evidence [results]prometheus.Counter
	batch    prometheus.Observer
	deleted  prometheus.Counter
}

// newMetrics registers the collectors, or joins those that the ledger of
// another consumer registered.
func newMetrics(reg prometheus.Registerer, consumer string) *metrics {
	duration := register(reg, prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "inboxd_shared_inbox_duration_seconds",
		Help:    "Time that a caller waited for the shared inbox, by consumer and operation.",
		Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5},
	}, []string{"consumer", "operation"}))
	failed := register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "inboxd_shared_inbox_errors_total",
		Help: "Calls to the shared inbox that failed, by consumer and operation.",
	}, []string{"consumer", "operation"}))
	evidence := register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "inboxd_evidence_total",
		Help: "Looks for the row that a handler must leave before it answers 2xx, by consumer and result (present, late, absent, other_body).",
	}, []string{"consumer", "result"}))
	size := register(reg, prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "inboxd_shared_inbox_batch_size",
		Help:    "Keys looked up by one statement, by consumer.",
		Buckets: prometheus.ExponentialBuckets(1, 2, 10),
	}, []string{"consumer"}))
	deleted := register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "inboxd_shared_inbox_rows_deleted_total",
		Help: "Rows of the shared inbox deleted because they were older than its retention, by consumer.",
	}, []string{"consumer"}))

	m := &metrics{batch: size.WithLabelValues(consumer), deleted: deleted.WithLabelValues(consumer)}
	for op := range operations {
		m.duration[op] = duration.WithLabelValues(consumer, op.String())
		m.errors[op] = failed.WithLabelValues(consumer, op.String())
	}
	for r := range results {
		m.evidence[r] = evidence.WithLabelValues(consumer, r.String())
	}
	return m
}

func register[C prometheus.Collector](reg prometheus.Registerer, c C) C {
	if reg == nil {
		return c
	}
	err := reg.Register(c)
	var there prometheus.AlreadyRegisteredError
	if errors.As(err, &there) {
		if same, ok := there.ExistingCollector.(C); ok {
			return same
		}
	}
	if err != nil {
		panic(err) // two different metrics of one name: a mistake in the program
	}
	return c
}

func (m *metrics) done(op operation, start time.Time, err error) {
	m.duration[op].Observe(time.Since(start).Seconds())
	if err != nil {
		m.errors[op].Inc()
	}
}
