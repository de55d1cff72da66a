package consumer

import (
	"math"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/inboxd/inboxd/internal/inbox"
)

// deliveryCountHeader is where a quorum queue says how often it has delivered
// the message before.
const deliveryCountHeader = "x-delivery-count"

// fill turns what the library delivered into d. It takes the headers and the
// body over: raw is not to be used any more.
func fill(d *inbox.Delivery, raw *amqp.Delivery, queue string, now time.Time) {
	*d = inbox.Delivery{
		Message: inbox.Message{
			Exchange:   raw.Exchange,
			RoutingKey: raw.RoutingKey,
			Properties: inbox.Properties{
				ContentType:     raw.ContentType,
				ContentEncoding: raw.ContentEncoding,
				DeliveryMode:    raw.DeliveryMode,
				Priority:        raw.Priority,
				CorrelationID:   raw.CorrelationId,
				ReplyTo:         raw.ReplyTo,
				Expiration:      raw.Expiration,
				MessageID:       raw.MessageId,
				Timestamp:       raw.Timestamp,
				Type:            raw.Type,
				UserID:          raw.UserId,
				AppID:           raw.AppId,
			},
			Headers: neutral(raw.Headers),
			Body:    raw.Body,
		},
		Queue:         queue,
		Redelivered:   raw.Redelivered,
		DeliveryCount: -1,
		Received:      now,
		FirstReceived: now.Round(0),
	}
	if v, ok := raw.Headers[deliveryCountHeader]; ok {
		d.DeliveryCount = count(v)
	}
}

func count(v any) int64 {
	switch n := v.(type) {
	case int64:
		return n
	case int32:
		return int64(n)
	case int16:
		return int64(n)
	case int8:
		return int64(n)
	case uint32:
		return int64(n)
	case uint16:
		return int64(n)
	case uint8:
		return int64(n)
	default:
		return -1
	}
}

// neutral turns t into broker-neutral values, in place.
func neutral(t amqp.Table) inbox.Table {
	for k, v := range t {
		switch v.(type) {
		case amqp.Table, []any, amqp.Decimal:
			t[k] = neutralValue(v)
		}
	}
	return inbox.Table(t)
}

func neutralValue(v any) any {
	switch v := v.(type) {
	case amqp.Table:
		return neutral(v)
	case amqp.Decimal:
		return inbox.Decimal{Scale: v.Scale, Value: v.Value}
	case []any:
		for i := range v {
			v[i] = neutralValue(v[i])
		}
		return v
	default:
		return v
	}
}

// amqpTable returns a copy of t in values that the library can write.
func amqpTable(t inbox.Table) amqp.Table {
	if t == nil {
		return nil
	}
	out := make(amqp.Table, len(t))
	for k, v := range t {
		out[k] = amqpValue(v)
	}
	return out
}

// amqpValue widens what the library would truncate (int) or cannot write
// (uint64); an integer beyond 63 bits becomes its decimal digits.
func amqpValue(v any) any {
	switch v := v.(type) {
	case inbox.Table:
		return amqpTable(v)
	case map[string]any:
		return amqpTable(v)
	case inbox.Decimal:
		return amqp.Decimal{Scale: v.Scale, Value: v.Value}
	case int:
		return int64(v)
	case uint:
		return unsigned(uint64(v))
	case uint64:
		return unsigned(v)
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = amqpValue(v[i])
		}
		return out
	default:
		return v
	}
}

func unsigned(n uint64) any {
	if n > math.MaxInt64 {
		return strconv.FormatUint(n, 10)
	}
	return int64(n)
}
