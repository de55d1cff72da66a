package testenv

import (
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"
)

// QueueState returns the ready messages and the consumers of a queue, by
// passive declare: rabbitmqctl's figures lag behind by seconds.
func QueueState(amqpURL, queue string) (messages, consumers int, err error) {
	err = withChannel(amqpURL, func(ch *amqp.Channel) error {
		q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		messages, consumers = q.Messages, q.Consumers
		return err
	})
	return messages, consumers, err
}

// ConsumerCount returns how many consumers the broker knows on a queue.
func ConsumerCount(amqpURL, queue string) (int, error) {
	_, n, err := QueueState(amqpURL, queue)
	return n, err
}

// DeclareQueue creates a durable queue.
func DeclareQueue(amqpURL, queue string, args amqp.Table) error {
	return withChannel(amqpURL, func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(queue, true, false, false, false, args)
		return err
	})
}

// DeleteQueue deletes a queue with all that is in it. A queue that does not
// exist is not an error.
func DeleteQueue(amqpURL, queue string) error {
	return withChannel(amqpURL, func(ch *amqp.Channel) error {
		_, err := ch.QueueDelete(queue, false, false, false)
		return err
	})
}

func withChannel(amqpURL string, do func(*amqp.Channel) error) (err error) {
	conn, err := amqp.DialConfig(amqpURL, amqp.Config{Dial: amqp.DefaultDial(connectTimeout)})
	if err != nil {
		return fmt.Errorf("connecting to the broker: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	ch, err := conn.Channel()
	if err != nil {
		return fmt.Errorf("opening a channel: %w", err)
	}
	return do(ch)
}
