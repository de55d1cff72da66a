// Command watermill is the program that a user of Watermill would write for the
// same job: a router that takes messages from a RabbitMQ queue and posts each to
// a URL, with Watermill's own deduplicator where -dedup is given. That one keeps
// its keys in memory and marks a message as seen before it is handled.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

type options struct {
	url, queue, target    string
	concurrency, prefetch int
	quorum, dedup         bool
}

func main() {
	var o options
	flag.StringVar(&o.url, "amqp", "", "broker")
	flag.StringVar(&o.queue, "queue", "", "queue")
	flag.StringVar(&o.target, "url", "", "handler")
	flag.IntVar(&o.concurrency, "concurrency", 64, "requests in flight")
	flag.IntVar(&o.prefetch, "prefetch", 64, "unacknowledged deliveries")
	flag.BoolVar(&o.quorum, "quorum", false, "the queue is a quorum queue")
	flag.BoolVar(&o.dedup, "dedup", false, "use Watermill's deduplicator")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "watermill:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	log := watermill.NewStdLogger(false, false)
	router, err := message.NewRouter(message.RouterConfig{}, log)
	if err != nil {
		return err
	}
	if o.dedup {
		keys, err := middleware.NewMapExpiringKeyRepository(time.Hour)
		if err != nil {
			return err
		}
		dedup := &middleware.Deduplicator{
			KeyFactory: func(m *message.Message) (string, error) { return m.UUID, nil },
			Repository: keys,
			Timeout:    time.Second,
		}
		router.AddMiddleware(dedup.Middleware)
	}

	config := amqp.NewDurableQueueConfig(o.url)
	config.Marshaler = marshaler{}
	// A subscription handles one message at a time, so concurrency is a number
	// of subscriptions, each with its share of the prefetch.
	config.Consume.Qos.PrefetchCount = max(1, o.prefetch/o.concurrency)
	if o.quorum {
		config.Queue.Arguments = amqp091.Table{amqp091.QueueTypeArg: amqp091.QueueTypeQuorum}
	}
	subscriber, err := amqp.NewSubscriber(config, log)
	if err != nil {
		return err
	}
	post := poster(o.target, o.concurrency)
	for i := range o.concurrency {
		router.AddConsumerHandler(fmt.Sprintf("post-%d", i), o.queue, subscriber, post)
	}
	return router.Run(ctx)
}

func poster(target string, concurrency int) message.NoPublishHandlerFunc {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = concurrency
	client := &http.Client{Transport: transport, Timeout: 30 * time.Second}
	return func(m *message.Message) error {
		req, err := http.NewRequest(http.MethodPost, target, bytes.NewReader(m.Payload))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", m.Metadata.Get("content_type"))
		req.Header.Set("Idempotency-Key", m.UUID)
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			return err
		}
		if resp.StatusCode/100 != 2 {
			return fmt.Errorf("handler answered %s", resp.Status)
		}
		return nil
	}
}

// marshaler takes the AMQP message ID as Watermill's UUID; Watermill's own
// looks for it in a header of its own.
type marshaler struct{ amqp.DefaultMarshaler }

func (marshaler) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	m := message.NewMessage(d.MessageId, d.Body)
	m.Metadata = message.Metadata{"content_type": d.ContentType}
	return m, nil
}
