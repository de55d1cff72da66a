package store

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Operation is the value of the metric label `operation`; the set is closed.
type Operation uint8

// The operations.
const (
	OpClaim     Operation = iota
	OpRecord              // make "processed" durable
	OpRelease             // give leases up
	OpPark                // store a message
	OpTake                // take due messages up, or put them back
	OpRemove              // delete a stored message
	OpDesk                // what a person asked for
	OpRetention           // delete old records
	OpHeartbeat           // keep this process's leases alive
	operations
)

func (o Operation) String() string {
	return [operations]string{
		"claim", "record", "release", "park", "take", "remove", "desk", "retention", "heartbeat",
	}[o]
}

// Metrics are the metrics of one store. Safe for concurrent use.
type Metrics struct {
	duration [operations]prometheus.Observer
	errors   [operations]prometheus.Counter
	size     [operations]prometheus.Observer // claim, record, retention
	deleted  prometheus.Counter
	leases   prometheus.Gauge

	parked *prometheus.GaugeVec
	mu     sync.Mutex
	known  map[string]bool // consumers with a gauge
}

// NewMetrics registers the metrics of a store, every series created.
func NewMetrics(reg prometheus.Registerer, consumers []string) *Metrics {
	duration := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "inboxd_store_duration_seconds",
		Help:    "Time of one call to the store, which may answer many messages at once, by operation.",
		Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5},
	}, []string{"operation"})
	failed := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "inboxd_store_errors_total",
		Help: "Calls to the store that failed, by operation. Each may have taken effect, and is repeated.",
	}, []string{"operation"})
	size := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "inboxd_store_batch_size",
		Help:    "Messages answered by one call to the store, by operation.",
		Buckets: prometheus.ExponentialBuckets(1, 2, 13),
	}, []string{"operation"})
	m := &Metrics{
		deleted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "inboxd_records_deleted_total",
			Help: "Records deleted because they were older than the retention.",
		}),
		leases: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "inboxd_store_leases",
			Help: "1 while each claim takes a lease against other daemons on the same inbox, 0 while none is needed.",
		}),
		parked: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "inboxd_parked_messages",
			Help: "Messages kept in the store, parked or deferred, by consumer. Refreshed every few seconds.",
		}, []string{"consumer"}),
		known: make(map[string]bool),
	}
	reg.MustRegister(duration, failed, size, m.deleted, m.leases, m.parked)
	for op := range operations {
		m.duration[op] = duration.WithLabelValues(op.String())
		m.errors[op] = failed.WithLabelValues(op.String())
	}
	for _, op := range []Operation{OpClaim, OpRecord, OpRetention} {
		m.size[op] = size.WithLabelValues(op.String())
	}
	for _, c := range consumers {
		m.known[c] = true
		m.parked.WithLabelValues(c)
	}
	return m
}

// Done notes one call to the store.
func (m *Metrics) Done(op Operation, start time.Time, err error) {
	m.duration[op].Observe(time.Since(start).Seconds())
	if err != nil {
		m.errors[op].Inc()
	}
}

// Size notes how many messages one call answered; op is OpClaim, OpRecord or
// OpRetention.
func (m *Metrics) Size(op Operation, n int) { m.size[op].Observe(float64(n)) }

// Deleted notes records removed by age.
func (m *Metrics) Deleted(n int64) { m.deleted.Add(float64(n)) }

// Leases notes whether claims take leases.
func (m *Metrics) Leases(taken bool) {
	if taken {
		m.leases.Set(1)
	} else {
		m.leases.Set(0)
	}
}

// Parked sets the gauge of every configured consumer. Messages of consumers
// that are configured no more are left to the listing: labels stay a closed set.
func (m *Metrics) Parked(counts map[string]int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for c := range m.known {
		m.parked.WithLabelValues(c).Set(float64(counts[c]))
	}
}
