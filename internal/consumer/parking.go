package consumer

import (
	"strings"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/inboxd/inboxd/internal/inbox"
)

// Headers of a parked message that say where it came from and why it is here.
const (
	headerPrefix = "x-inboxd-"

	headerReason        = headerPrefix + "reason"
	headerConsumer      = headerPrefix + "consumer"
	headerMessageID     = headerPrefix + "message-id" // canonical
	headerAttempts      = headerPrefix + "attempts"
	headerRequests      = headerPrefix + "requests"
	headerStatus        = headerPrefix + "status"
	headerError         = headerPrefix + "error"
	headerQueue         = headerPrefix + "queue"
	headerExchange      = headerPrefix + "exchange"
	headerRoutingKey    = headerPrefix + "routing-key"
	headerExpiration    = headerPrefix + "expiration"
	headerUserID        = headerPrefix + "user-id"
	headerCC            = headerPrefix + "cc"
	headerBCC           = headerPrefix + "bcc"
	headerDeliveryMode  = headerPrefix + "delivery-mode"
	headerFirstReceived = headerPrefix + "first-received"
	headerLastAttempt   = headerPrefix + "last-attempt"
	headerOmitted       = headerPrefix + "headers-omitted"
)

const (
	maxErrorHeader = 1 << 10
	// ownHeaders bounds the message's own headers, as they are on the wire, and
	// headerRoom is left for ours and the properties. A header block is never
	// split, and one above frame_max closes the connection.
	ownHeaders = 64 << 10
	headerRoom = 7 << 10
)

// parking turns m into what is published. The copy keeps body, headers and
// properties, but none that would make the broker refuse it (user_id), multiply
// it (CC, BCC), expire it (expiration) or take it for a dead letter in a cycle
// (x-death); those go into headers of ours.
func parking(m *inbox.ParkedMessage, frameMax int) amqp.Publishing {
	limit := ownHeaders
	if frameMax > 0 {
		limit = min(limit, frameMax-headerRoom)
	}
	p := m.Properties
	own := make(amqp.Table, len(m.Headers))
	size, omitted := 0, 0
	for k, v := range m.Headers {
		if dropped(k) {
			continue
		}
		if size += len(k) + wireSize(v); size > limit || len(k) > 255 {
			size -= len(k) + wireSize(v)
			omitted++
			continue
		}
		own[k] = amqpValue(v)
	}
	note := func(name, value string) {
		if value != "" {
			own[name] = value
		}
	}
	note(headerReason, m.Reason.String())
	note(headerConsumer, m.Consumer)
	note(headerMessageID, string(m.MessageID))
	note(headerError, excerpt(m.Error, maxErrorHeader))
	note(headerQueue, m.Queue)
	note(headerExchange, m.Exchange)
	note(headerRoutingKey, m.RoutingKey)
	note(headerExpiration, p.Expiration)
	note(headerUserID, p.UserID)
	note(headerFirstReceived, instant(m.FirstReceived))
	note(headerLastAttempt, instant(m.LastAttempt))
	own[headerAttempts] = int64(m.Attempts)
	own[headerRequests] = int64(m.Requests)
	if m.LastStatus != 0 {
		own[headerStatus] = int64(m.LastStatus)
	}
	if p.DeliveryMode != 0 && p.DeliveryMode != amqp.Persistent {
		own[headerDeliveryMode] = int64(p.DeliveryMode)
	}
	for from, to := range map[string]string{"CC": headerCC, "BCC": headerBCC} {
		if v, ok := m.Headers[from]; ok && wireSize(v) <= maxErrorHeader {
			own[to] = amqpValue(v)
		}
	}
	if omitted > 0 {
		own[headerOmitted] = int64(omitted)
	}
	return amqp.Publishing{
		Headers:         own,
		ContentType:     p.ContentType,
		ContentEncoding: p.ContentEncoding,
		DeliveryMode:    amqp.Persistent,
		Priority:        p.Priority,
		CorrelationId:   p.CorrelationID,
		ReplyTo:         p.ReplyTo,
		MessageId:       p.MessageID,
		Timestamp:       p.Timestamp,
		Type:            p.Type,
		AppId:           p.AppID,
		Body:            m.Body,
	}
}

// dropped reports whether a header of the original is not copied under its own
// name.
func dropped(name string) bool {
	switch name {
	case "CC", "BCC", deliveryCountHeader, "x-death", "x-delay":
		return true
	}
	return strings.HasPrefix(name, "x-first-death-") || strings.HasPrefix(name, "x-last-death-") ||
		strings.HasPrefix(name, headerPrefix) && name != UnreadableHeaders
}

// wireSize is at least what v takes in a header table.
func wireSize(v any) int {
	const fixed = 10
	switch v := v.(type) {
	case string:
		return fixed + len(v)
	case []byte:
		return fixed + len(v)
	case []any:
		n := fixed
		for _, e := range v {
			n += wireSize(e)
		}
		return n
	case inbox.Table:
		n := fixed
		for k, e := range v {
			n += len(k) + wireSize(e)
		}
		return n
	default:
		return 2 * fixed
	}
}

// excerpt cuts s to at most n bytes, not inside a character.
func excerpt(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

func instant(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}
