package store

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
)

// MarshalEnvelope returns everything of m but its headers and its body: where it
// was published to and its properties, as JSON of inbox.MarshalTable. Names are
// in order and unset properties left out, so that an older binary can read what
// a newer one adds.
func MarshalEnvelope(m *inbox.Message) ([]byte, error) {
	p := &m.Properties
	t := inbox.Table{"exchange": m.Exchange, "routing_key": m.RoutingKey}
	for _, f := range stringFields(p) {
		if *f.value != "" {
			t[f.name] = *f.value
		}
	}
	if p.DeliveryMode != 0 {
		t["delivery_mode"] = int64(p.DeliveryMode)
	}
	if p.Priority != 0 {
		t["priority"] = int64(p.Priority)
	}
	if !p.Timestamp.IsZero() {
		t["timestamp"] = p.Timestamp.Unix() // AMQP's own form: it fits any year
	}
	b, err := inbox.MarshalTable(t)
	if err != nil {
		return nil, fmt.Errorf("properties: %w", err)
	}
	return b, nil
}

// UnmarshalEnvelope is the inverse of MarshalEnvelope.
func UnmarshalEnvelope(b []byte, m *inbox.Message) error {
	t, err := inbox.UnmarshalTable(b)
	if err != nil {
		return fmt.Errorf("properties: %w", err)
	}
	m.Exchange, m.RoutingKey = text(t["exchange"]), text(t["routing_key"])
	p := &m.Properties
	for _, f := range stringFields(p) {
		*f.value = text(t[f.name])
	}
	p.DeliveryMode = small(t["delivery_mode"])
	p.Priority = small(t["priority"])
	if s, ok := t["timestamp"].(int64); ok {
		p.Timestamp = time.Unix(s, 0).UTC()
	}
	return nil
}

type stringField struct {
	name  string
	value *string
}

func stringFields(p *inbox.Properties) []stringField {
	return []stringField{
		{"content_type", &p.ContentType},
		{"content_encoding", &p.ContentEncoding},
		{"correlation_id", &p.CorrelationID},
		{"reply_to", &p.ReplyTo},
		{"expiration", &p.Expiration},
		{"message_id", &p.MessageID},
		{"type", &p.Type},
		{"user_id", &p.UserID},
		{"app_id", &p.AppID},
	}
}

// text returns a string, also one that came back as bytes because it is not
// UTF-8.
func text(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case []byte:
		return string(v)
	}
	return ""
}

func small(v any) uint8 {
	n, _ := v.(int64)
	return uint8(n)
}

// MarshalHeaders returns the header table as JSON.
func MarshalHeaders(h inbox.Table) ([]byte, error) {
	b, err := inbox.MarshalTable(h)
	if err != nil {
		return nil, fmt.Errorf("headers: %w", err)
	}
	return b, nil
}

// UnmarshalHeaders is the inverse of MarshalHeaders; no headers are nil.
func UnmarshalHeaders(b []byte) (inbox.Table, error) {
	t, err := inbox.UnmarshalTable(b)
	if err != nil {
		return nil, fmt.Errorf("headers: %w", err)
	}
	if len(t) == 0 {
		return nil, nil
	}
	return t, nil
}

// BodyHash tells bodies apart where a message is delivered again.
func BodyHash(body []byte) []byte {
	h := sha256.Sum256(body)
	return h[:]
}

// PlainText makes s fit for a text column: what is not UTF-8, and NUL, becomes
// the replacement character. It is for text that people read, not for data.
func PlainText(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

// ParkedText is s as it is stored: short of what would make a row unwieldy.
func ParkedText(s string) string {
	const limit = 4 << 10
	if len(s) > limit {
		s = s[:limit] + "…"
	}
	return PlainText(s)
}

// Millis is the stored form of a time, 0 for the zero time.
func Millis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// FromMillis is the inverse of Millis.
func FromMillis(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}
