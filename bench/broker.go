package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// declare creates a durable queue of the given type.
func declare(ch *amqp.Channel, name, kind string) error {
	_, err := ch.QueueDeclare(name, true, false, false, false, amqp.Table{amqp.QueueTypeArg: kind})
	if err != nil {
		return fmt.Errorf("declaring queue %s: %w", name, err)
	}
	return nil
}

func deleteQueue(url, name string) error {
	conn, ch, err := openChannel(url)
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = ch.QueueDelete(name, false, false, false)
	return err
}

func openChannel(url string) (*amqp.Connection, *amqp.Channel, error) {
	conn, err := amqp.Dial(url)
	if err != nil {
		return nil, nil, fmt.Errorf("connecting to the broker: %w", err)
	}
	ch, err := conn.Channel()
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("opening a channel: %w", err), conn.Close())
	}
	return conn, ch, nil
}

// fill declares a queue and publishes the messages with the given numbers in
// order, each confirmed by the broker.
func fill(ctx context.Context, url, queue, kind string, numbers []int, size int) error {
	conn, ch, err := openChannel(url)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := declare(ch, queue, kind); err != nil {
		return err
	}
	if err := ch.Confirm(false); err != nil {
		return fmt.Errorf("asking for confirms: %w", err)
	}
	// Bounded, so that the broker need not slow us down by flow control.
	window := max(16, min(2000, (8<<20)/size))
	pending := make([]*amqp.DeferredConfirmation, 0, window)
	for i, n := range numbers {
		confirm, err := ch.PublishWithDeferredConfirm("", queue, false, false, publishing(n, body(n, size)))
		if err != nil {
			return fmt.Errorf("publishing: %w", err)
		}
		pending = append(pending, confirm)
		if len(pending) < window && i < len(numbers)-1 {
			continue
		}
		for _, c := range pending {
			if ok, err := c.WaitContext(ctx); err != nil || !ok {
				return fmt.Errorf("waiting for a confirm: ok=%v: %w", ok, err)
			}
		}
		pending = pending[:0]
	}
	return nil
}

// publishing is a message as a careful producer sends it.
func publishing(n int, body []byte) amqp.Publishing {
	return amqp.Publishing{
		MessageId:    messageID(n),
		ContentType:  "application/json",
		DeliveryMode: amqp.Persistent,
		Type:         "order.paid",
		AppId:        "shop",
		Timestamp:    time.Unix(1700000000+int64(n), 0),
		Headers:      amqp.Table{"tenant": "acme", "schema": int32(3)},
		Body:         body,
	}
}
