// Package consumer speaks AMQP: it keeps one consumer registered at a queue,
// hands deliveries to a Handler and settles them as the result says. It also
// publishes parked messages and examines a broker for `inboxd check`.
package consumer
