package consumer

import (
	"context"
	"crypto/tls"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
)

// Handler processes one delivery and says how that ended. It runs in a
// goroutine of its own. Once ctx is done it must start nothing new: the session
// that brought the delivery is lost or about to end, or the process stops. What
// it has begun (a request in flight, the record after it) it finishes; the
// result of a handler that outlives its session is recorded by whoever runs it
// and dropped here, because the broker delivers the message again.
type Handler = func(ctx context.Context, d *inbox.Delivery) inbox.Result

// Broker says how to reach the broker. It is shared by everything in this
// package that opens a connection.
type Broker struct {
	// Credentials returns the URLs of the broker's nodes, to be tried in turn,
	// and the TLS configuration for amqps ones (nil: the system's roots). It is
	// called before every dial, so that a rotated password or certificate is
	// picked up by the next one. Its error must not contain secrets. The query
	// parameters heartbeat and connection_timeout of a URL have no effect.
	Credentials func() (urls []string, tls *tls.Config, err error)
	// Heartbeat is offered to the broker; default 10 s.
	Heartbeat time.Duration
	// RPCTimeout bounds every call that the broker has to answer, and every
	// write; default 5 s. When it is over, the socket is closed.
	RPCTimeout time.Duration
	// MinBackoff and MaxBackoff bound the pause before the next dial, which is
	// drawn with full jitter; default 100 ms and 10 s.
	MinBackoff, MaxBackoff time.Duration
}

// URLs returns a Credentials function for fixed URLs.
func URLs(urls ...string) func() ([]string, *tls.Config, error) {
	return func() ([]string, *tls.Config, error) { return urls, nil, nil }
}

func (b Broker) withDefaults() Broker {
	setDefault(&b.Heartbeat, 10*time.Second)
	setDefault(&b.RPCTimeout, 5*time.Second)
	setDefault(&b.MinBackoff, 100*time.Millisecond)
	setDefault(&b.MaxBackoff, 10*time.Second)
	return b
}

func setDefault(d *time.Duration, to time.Duration) {
	if *d <= 0 {
		*d = to
	}
}

// Options is the configuration of one Consumer.
type Options struct {
	Broker Broker
	// Consumer is the name in the configuration.
	Consumer string
	// Queue must exist unless Declare is set.
	Queue string
	// Prefetch is how many deliveries may be unsettled at once, 1 to 65535;
	// default 32. There is no unlimited prefetch.
	Prefetch int
	// MaxPrefetch, where it is more than Prefetch, lets the prefetch follow the
	// speed of the handler from there up to here.
	MaxPrefetch int
	// Steady keeps the prefetch at Prefetch from the first delivery on: each change
	// is the end of a consumer and the begin of another for the broker. It is lowered
	// all the same where bodies have no room.
	Steady bool
	// MaxBytes is how much the bodies in hand may have together, 0 for no limit.
	// One message of any size may always be in hand. The prefetch is lowered below
	// Prefetch where the sizes of the bodies ask for that.
	MaxBytes int64
	// BodySize is what the size of a body is taken to be before the first one.
	BodySize int64
	// Declare, where set, declares the queue before consuming from it.
	Declare *Declare
	// Grace is how long a graceful end waits for handlers; default 25 s.
	Grace time.Duration
	// Careful, where set, is asked at the begin of a session. While it says true
	// the broker hands over one delivery at a time (Single is set), so that
	// whatever ends the session or the process counts against no other. It is
	// asked again many times a second; the session is renewed when it says false.
	Careful func() bool
	// DeliveryLimit is the delivery limit of the queue, 0 where it has none, or
	// AutoDeliveryLimit.
	DeliveryLimit int
	// EmbeddedStore says that the records are in a file that only this process
	// sees, so that a second consumer on the queue is worth a warning.
	EmbeddedStore bool
	// Retention is how long records are kept; only Examine looks at it.
	Retention time.Duration
}

// Declare describes the queue to declare. It is durable and never deleted by
// itself; Type is "classic" (default) or "quorum".
type Declare struct {
	Type      string
	Arguments inbox.Table
}

// AutoDeliveryLimit takes the delivery limit from Declare or, where that has
// none, the default of the broker's version.
const AutoDeliveryLimit = -1

const (
	defaultPrefetch = 32
	maxPrefetch     = 65535
	defaultGrace    = 25 * time.Second
)

func (o Options) withDefaults() Options {
	o.Broker = o.Broker.withDefaults()
	setDefault(&o.Grace, defaultGrace)
	if o.Prefetch <= 0 {
		o.Prefetch = defaultPrefetch
	}
	o.Prefetch = min(o.Prefetch, maxPrefetch)
	o.MaxPrefetch = max(o.Prefetch, min(o.MaxPrefetch, maxPrefetch))
	return o
}

// singleActiveArg of a queue lets one consumer at a time have it.
const singleActiveArg = "x-single-active-consumer"

func (o Options) newFlow() *flow {
	f := &flow{least: o.Prefetch, most: o.MaxPrefetch, limit: o.MaxBytes}
	f.sizes.mean.Store(max(1, o.BodySize))
	if o.Steady || o.Declare != nil && o.Declare.Arguments[singleActiveArg] == true {
		f.steady, f.most = true, f.least
	}
	return f
}

// MostInHand is how many deliveries there can be at most whose handlers have not
// ended, as long as no session is lost.
func (o Options) MostInHand() int {
	o = o.withDefaults()
	f := o.newFlow()
	if first := f.first(); f.least == f.most && first < f.least {
		return first + f.least // those from before the prefetch was raised
	}
	return f.most
}
