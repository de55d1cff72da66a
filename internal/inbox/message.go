package inbox

import (
	"encoding/hex"
	"time"
)

// Table is an AMQP header table in broker-neutral values: nil, bool, every Go
// integer type, float32, float64, string, []byte, time.Time, Decimal, Table
// and []any of these. A string may hold any bytes.
type Table map[string]any

// Decimal is the AMQP decimal: Value × 10^-Scale.
type Decimal struct {
	Scale uint8
	Value int32
}

// Properties are the AMQP basic properties of a message. A zero value means
// that the producer did not set the property.
type Properties struct {
	ContentType     string
	ContentEncoding string
	DeliveryMode    uint8 // 2 is persistent
	Priority        uint8
	CorrelationID   string
	ReplyTo         string
	Expiration      string
	MessageID       string
	// Timestamp has a resolution of one second. Producers that write
	// milliseconds lead to years far beyond 9999; Unix() is what was sent.
	Timestamp time.Time
	Type      string
	UserID    string
	AppID     string
}

// Message is what a producer published, as the broker handed it over.
type Message struct {
	Exchange   string
	RoutingKey string
	Properties Properties
	Headers    Table
	Body       []byte
}

// MessageID is a message's identifier in its canonical form: visible ASCII,
// at most 255 bytes (see Canonical). The empty MessageID means none.
type MessageID string

// Key is the inbox key. Consumer is the name in the configuration; a message
// is processed once for each consumer, not once in the world.
type Key struct {
	Consumer string
	ID       MessageID
}

// Fingerprint is the first 8 bytes of the SHA-256 of what identifies a body.
// The zero Fingerprint means none, and matches every other one.
type Fingerprint [8]byte

// IsZero reports whether f is no fingerprint at all.
func (f Fingerprint) IsZero() bool { return f == Fingerprint{} }

// Matches reports whether f and g may belong to one message. A missing
// fingerprint on either side matches.
func (f Fingerprint) Matches(g Fingerprint) bool {
	return f == g || f.IsZero() || g.IsZero()
}

// String returns f in lower-case hexadecimal, or "" for the zero value.
func (f Fingerprint) String() string {
	if f.IsZero() {
		return ""
	}
	return hex.EncodeToString(f[:])
}

// Delivery is one hand-over of a message to us: by the broker, or by the store
// where the message was deferred or is replayed. A Delivery belongs to one
// goroutine at a time.
type Delivery struct {
	Message

	Queue       string
	Redelivered bool
	// DeliveryCount is the broker's count of earlier deliveries
	// (x-delivery-count of a quorum queue), or -1 where it keeps none.
	DeliveryCount int64
	// DeliveryLimit is the count above which the broker drops the message, 0
	// where it never does or that is not known.
	DeliveryLimit int64
	// Received is when this process got hold of the delivery; it carries the
	// monotonic clock.
	Received time.Time

	// Single says that the broker hands nothing else over meanwhile: a wait for
	// the next attempt would hold up the whole queue.
	Single bool

	// ID and Fingerprint are filled in by Process.
	ID          MessageID
	Fingerprint Fingerprint

	// StoredID is the parked message that this delivery was taken up from, ""
	// for a delivery from the broker.
	StoredID string
	// Attempts counts the requests so far that count against max_attempts,
	// Requests all requests so far, Slow the answers that point at a wrong
	// set-up (see Misconfigured).
	Attempts int
	Requests int
	Slow     int
	// FirstReceived is the wall-clock time of the first delivery of this
	// message that we know of; LastAttempt that of the latest request.
	FirstReceived time.Time
	LastAttempt   time.Time
	// Last is the answer to the latest request.
	Last Answer
	// Suspect says that the latest request that was sent ended with its
	// connection: the message may be what kills the handler.
	Suspect bool
}
