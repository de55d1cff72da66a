package consumer

import amqp "github.com/rabbitmq/amqp091-go"

// The broker tells nobody a queue's delivery limit, so that what is not
// configured is taken from the version in its greeting.
const (
	deliveryLimitArg     = "x-delivery-limit"
	defaultDeliveryLimit = 20 // of quorum queues since RabbitMQ 4.0
)

// deliveryLimit is the limit to go by in a session with a broker of these
// properties, 0 for none.
func (o Options) deliveryLimit(broker amqp.Table) int64 {
	if o.DeliveryLimit >= 0 {
		return int64(o.DeliveryLimit)
	}
	if o.Declare != nil {
		if n, ok := o.Declare.Arguments[deliveryLimitArg]; ok {
			return max(0, count(n))
		}
	}
	if majorVersion(broker) >= 4 {
		return defaultDeliveryLimit
	}
	return 0
}
