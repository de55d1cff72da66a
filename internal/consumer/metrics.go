package consumer

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/inboxd/inboxd/internal/inbox"
)

// metrics are one consumer's own series of the vectors that all consumers of
// the process share.
type metrics struct {
	connected    prometheus.Gauge
	consuming    prometheus.Gauge
	sessions     prometheus.Counter
	lastDelivery prometheus.Gauge
	prefetch     prometheus.Gauge
	inHand       prometheus.Gauge
	heldBack     prometheus.Counter
	settled      map[inbox.Decision]prometheus.Counter
	dropped      prometheus.Counter
	rewritten    prometheus.Counter
	unreadable   prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, consumer string) *metrics {
	gauge := func(name, help string) prometheus.Gauge {
		return shared(reg, prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{"consumer"})).
			WithLabelValues(consumer)
	}
	counter := func(name, help string) prometheus.Counter {
		return shared(reg, prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{"consumer"})).
			WithLabelValues(consumer)
	}
	settled := shared(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "inboxd_settled_total",
		Help: "Deliveries settled, by what the broker was told; dropped: nothing, because the session that delivered them was gone.",
	}, []string{"consumer", "decision"}))
	headers := shared(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "inboxd_header_tables_repaired_total",
		Help: "Header tables that the AMQP client library cannot read, by what became of them: rewritten without loss, or cut and marked.",
	}, []string{"consumer", "result"}))
	return &metrics{
		connected:    gauge("inboxd_broker_connected", "1 while there is a connection to the broker."),
		consuming:    gauge("inboxd_consuming", "1 while the consumer is registered at the broker."),
		sessions:     counter("inboxd_broker_sessions_total", "Sessions that came to consume."),
		lastDelivery: gauge("inboxd_last_delivery_timestamp_seconds", "When the broker delivered last; 0: never."),
		prefetch:     gauge("inboxd_prefetch", "Messages that the broker may hand over in advance, as the consumer is registered; 0 while it is not."),
		inHand:       gauge("inboxd_in_hand_bytes", "Bytes of the bodies in hand, from the socket until the handler is done."),
		heldBack:     counter("inboxd_reading_held_back_seconds_total", "Time in which nothing was read from the broker, for want of room for the next body."),
		settled: map[inbox.Decision]prometheus.Counter{
			inbox.Ack:     settled.WithLabelValues(consumer, "ack"),
			inbox.Requeue: settled.WithLabelValues(consumer, "requeue"),
			inbox.Reject:  settled.WithLabelValues(consumer, "reject"),
		},
		dropped:    settled.WithLabelValues(consumer, "dropped"),
		rewritten:  headers.WithLabelValues(consumer, "rewritten"),
		unreadable: headers.WithLabelValues(consumer, "cut"),
	}
}

// shared registers c, or returns what another consumer has registered under the
// same name. A nil registerer registers nothing.
func shared[C prometheus.Collector](reg prometheus.Registerer, c C) C {
	if reg == nil {
		return c
	}
	err := reg.Register(c)
	var already prometheus.AlreadyRegisteredError
	if errors.As(err, &already) {
		return already.ExistingCollector.(C)
	}
	if err != nil {
		panic(err) // two packages claim one metric name
	}
	return c
}

func (m *metrics) state(connected, consuming bool) {
	m.connected.Set(number(connected))
	m.consuming.Set(number(consuming))
}

func (m *metrics) repaired(cut bool) {
	if cut {
		m.unreadable.Inc()
	} else {
		m.rewritten.Inc()
	}
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
