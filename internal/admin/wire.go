package admin

import (
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/inboxd/inboxd/internal/inbox"
)

// Text is a string of AMQP as JSON: a string where it is UTF-8, and otherwise
// {"bytes": "<base64>"}, so that nothing is lost.
type Text string

type taggedBytes struct {
	Bytes []byte `json:"bytes"`
}

// MarshalJSON implements json.Marshaler.
func (t Text) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(t)) {
		return json.Marshal(string(t))
	}
	return json.Marshal(taggedBytes{[]byte(t)})
}

// UnmarshalJSON implements json.Unmarshaler.
func (t *Text) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err == nil {
		*t = Text(s)
		return nil
	}
	var tagged taggedBytes
	if err := json.Unmarshal(b, &tagged); err != nil {
		return fmt.Errorf("neither a string nor {\"bytes\": …}: %w", err)
	}
	*t = Text(tagged.Bytes)
	return nil
}

// Parked is a stored message without what makes it long.
type Parked struct {
	ID            string            `json:"id"`
	Consumer      string            `json:"consumer"`
	MessageID     inbox.MessageID   `json:"message_id"`
	Reason        string            `json:"reason"`
	State         inbox.ParkedState `json:"state"`
	Attempts      int               `json:"attempts"`
	Requests      int               `json:"requests"`
	Replays       int               `json:"replays"`
	LastStatus    int               `json:"last_status"`
	Error         string            `json:"error,omitempty"`
	Queue         Text              `json:"queue"`
	Exchange      Text              `json:"exchange"`
	RoutingKey    Text              `json:"routing_key"`
	FirstReceived time.Time         `json:"first_received,omitzero"`
	LastAttempt   time.Time         `json:"last_attempt,omitzero"`
	ParkedAt      time.Time         `json:"parked_at,omitzero"`
	Due           time.Time         `json:"due,omitzero"`
}

// ParkedList is the answer of GET /api/parked. Next is the `after` of the next
// page, "" on the last one.
type ParkedList struct {
	Parked []Parked `json:"parked"`
	Next   string   `json:"next"`
}

// ParkedWhole is a stored message with everything, as the single view shows it
// and as export and import carry it.
type ParkedWhole struct {
	Parked
	Fingerprint string          `json:"fingerprint,omitempty"`
	Slow        int             `json:"slow,omitempty"`
	Redelivered bool            `json:"redelivered,omitempty"`
	Properties  Properties      `json:"properties"`
	Headers     json.RawMessage `json:"headers"` // as in the header Amqp-Headers
	// HeadersError says why Headers is null.
	HeadersError string `json:"headers_error,omitempty"`
	Body         []byte `json:"body"`   // base64
	Answer       Text   `json:"answer"` // the start of the last answer's body
}

// Properties are the AMQP properties of a message, where set.
type Properties struct {
	ContentType     Text       `json:"content_type,omitempty"`
	ContentEncoding Text       `json:"content_encoding,omitempty"`
	DeliveryMode    uint8      `json:"delivery_mode,omitempty"`
	Priority        uint8      `json:"priority,omitempty"`
	CorrelationID   Text       `json:"correlation_id,omitempty"`
	ReplyTo         Text       `json:"reply_to,omitempty"`
	Expiration      Text       `json:"expiration,omitempty"`
	MessageID       Text       `json:"message_id,omitempty"`
	Timestamp       *Timestamp `json:"timestamp,omitempty"`
	Type            Text       `json:"type,omitempty"`
	UserID          Text       `json:"user_id,omitempty"`
	AppID           Text       `json:"app_id,omitempty"`
}

// Timestamp is the AMQP timestamp: RFC 3339, or the number of seconds where the
// year has no four digits (a producer wrote milliseconds).
type Timestamp struct{ time.Time }

// MarshalJSON implements json.Marshaler.
func (t Timestamp) MarshalJSON() ([]byte, error) {
	if y := t.UTC().Year(); y < 0 || y > 9999 {
		return json.Marshal(t.Unix())
	}
	return json.Marshal(t.UTC())
}

// UnmarshalJSON implements json.Unmarshaler.
func (t *Timestamp) UnmarshalJSON(b []byte) error {
	var seconds int64
	if err := json.Unmarshal(b, &seconds); err == nil {
		t.Time = time.Unix(seconds, 0).UTC()
		return nil
	}
	return json.Unmarshal(b, &t.Time)
}

func parkedOf(m *inbox.ParkedMessage) Parked {
	return Parked{
		ID: m.ID, Consumer: m.Consumer, MessageID: m.MessageID, Reason: m.Reason.String(), State: m.State,
		Attempts: m.Attempts, Requests: m.Requests, Replays: m.Replays,
		LastStatus: m.LastStatus, Error: m.Error,
		Queue: Text(m.Queue), Exchange: Text(m.Exchange), RoutingKey: Text(m.RoutingKey),
		FirstReceived: m.FirstReceived, LastAttempt: m.LastAttempt, ParkedAt: m.ParkedAt, Due: m.Due,
	}
}

func wholeOf(m *inbox.ParkedMessage) ParkedWhole {
	p := m.Properties
	w := ParkedWhole{
		Parked: parkedOf(m), Fingerprint: m.Fingerprint.String(), Slow: m.Slow, Redelivered: m.Redelivered,
		Properties: Properties{
			ContentType: Text(p.ContentType), ContentEncoding: Text(p.ContentEncoding),
			DeliveryMode: p.DeliveryMode, Priority: p.Priority, CorrelationID: Text(p.CorrelationID),
			ReplyTo: Text(p.ReplyTo), Expiration: Text(p.Expiration), MessageID: Text(p.MessageID),
			Type: Text(p.Type), UserID: Text(p.UserID), AppID: Text(p.AppID),
		},
		Body: m.Body, Answer: Text(m.Answer),
	}
	if !p.Timestamp.IsZero() {
		w.Properties.Timestamp = &Timestamp{p.Timestamp}
	}
	headers, err := inbox.MarshalTable(m.Headers)
	if err != nil {
		w.Headers, w.HeadersError = json.RawMessage("null"), err.Error()
		return w
	}
	w.Headers = headers
	return w
}

// message is the inverse of wholeOf, without the ID: a store gives its own.
func (w *ParkedWhole) message() (*inbox.ParkedMessage, error) {
	p := w.Properties
	m := &inbox.ParkedMessage{
		Consumer: w.Consumer, MessageID: w.MessageID, State: w.State,
		Attempts: w.Attempts, Requests: w.Requests, Slow: w.Slow, Replays: w.Replays,
		LastStatus: w.LastStatus, Answer: []byte(w.Answer), Error: w.Error,
		Queue: string(w.Queue), Redelivered: w.Redelivered,
		FirstReceived: w.FirstReceived.UTC(), LastAttempt: w.LastAttempt.UTC(),
		ParkedAt: w.ParkedAt.UTC(), Due: w.Due.UTC(),
		Message: inbox.Message{
			Exchange: string(w.Exchange), RoutingKey: string(w.RoutingKey), Body: w.Body,
			Properties: inbox.Properties{
				ContentType: string(p.ContentType), ContentEncoding: string(p.ContentEncoding),
				DeliveryMode: p.DeliveryMode, Priority: p.Priority, CorrelationID: string(p.CorrelationID),
				ReplyTo: string(p.ReplyTo), Expiration: string(p.Expiration), MessageID: string(p.MessageID),
				Type: string(p.Type), UserID: string(p.UserID), AppID: string(p.AppID),
			},
		},
	}
	if p.Timestamp != nil {
		m.Properties.Timestamp = p.Timestamp.Time
	}
	return m, w.fill(m)
}

// fill sets what can be wrong in an import.
func (w *ParkedWhole) fill(m *inbox.ParkedMessage) error {
	switch m.State {
	case inbox.StateParked, inbox.StateDeferred:
	case "":
		m.State = inbox.StateParked
	default:
		return fmt.Errorf("state: %q is neither parked nor deferred", w.State)
	}
	if m.MessageID != "" && !isCanonical(m.MessageID) {
		return fmt.Errorf("message_id: %q is not in canonical form", cut(string(w.MessageID), 64))
	}
	reason, ok := inbox.ParseParkReason(w.Reason)
	if !ok && (w.Reason != "" || m.State == inbox.StateParked) {
		return fmt.Errorf("reason: %q is unknown", w.Reason)
	}
	m.Reason = reason
	var err error
	if m.Fingerprint, err = parseFingerprint(w.Fingerprint); err != nil {
		return err
	}
	if w.HeadersError != "" {
		return fmt.Errorf("headers: were not exported: %s", w.HeadersError)
	}
	if len(w.Headers) == 0 || string(w.Headers) == "null" {
		return nil
	}
	if m.Headers, err = inbox.UnmarshalTable(w.Headers); err != nil {
		return fmt.Errorf("headers: %w", err)
	}
	return nil
}
