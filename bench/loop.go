package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/valyala/fasthttp"
)

// runLoop is the bare loop, what a Go programmer writes in ten minutes: consume,
// POST, ack. It deduplicates nothing, retries nothing and records nothing. It
// is the yardstick of every ratio.
func runLoop(ctx context.Context, args []string, _ io.Writer) error {
	fs := flag.NewFlagSet("loop", flag.ContinueOnError)
	url := fs.String("amqp", "", "broker")
	queue := fs.String("queue", "", "queue")
	target := fs.String("url", "", "handler")
	client := fs.String("client", "nethttp", "nethttp or fasthttp")
	multiple := fs.Bool("multiple", false, "acknowledge many at a time")
	concurrency := fs.Int("concurrency", 64, "requests in flight")
	prefetch := fs.Int("prefetch", 64, "unacknowledged deliveries")
	if err := parseFlags(fs, args); err != nil {
		return err
	}

	post := postNetHTTP(*target, *concurrency)
	if *client == "fasthttp" {
		post = postFastHTTP(*target, *concurrency)
	}
	conn, err := amqp.Dial(*url)
	if err != nil {
		return fmt.Errorf("dialling: %w", err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return fmt.Errorf("opening a channel: %w", err)
	}
	if err := ch.Qos(*prefetch, 0, false); err != nil {
		return fmt.Errorf("setting the prefetch: %w", err)
	}
	deliveries, err := ch.ConsumeWithContext(ctx, *queue, "", false, false, false, false, nil)
	if err != nil {
		return fmt.Errorf("consuming: %w", err)
	}

	ack := func(d amqp.Delivery) error { return d.Ack(false) }
	if *multiple {
		a := newAcker(ch, *prefetch)
		defer a.stop()
		ack = a.ack
	}
	var wg sync.WaitGroup
	failed := make(chan error, *concurrency)
	for range *concurrency {
		wg.Go(func() {
			for d := range deliveries {
				if err := post(&d); err != nil {
					failed <- err
					return
				}
				if err := ack(d); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(failed)
	if err := <-failed; err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

func postNetHTTP(target string, concurrency int) func(*amqp.Delivery) error {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = concurrency // the default of 2 would dial all the time
	transport.MaxIdleConns = 0
	transport.DisableCompression = true
	client := &http.Client{Transport: transport, Timeout: 30 * time.Second}
	return func(d *amqp.Delivery) error {
		req, err := http.NewRequest(http.MethodPost, target, bytes.NewReader(d.Body))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", d.ContentType)
		req.Header.Set("Idempotency-Key", d.MessageId)
		resp, err := client.Do(req)
		if err != nil {
			return fmt.Errorf("posting: %w", err)
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			return fmt.Errorf("reading the answer: %w", err)
		}
		if resp.StatusCode/100 != 2 {
			return fmt.Errorf("posting: %s", resp.Status)
		}
		return nil
	}
}

func postFastHTTP(target string, concurrency int) func(*amqp.Delivery) error {
	client := &fasthttp.Client{
		MaxConnsPerHost:               concurrency,
		ReadTimeout:                   30 * time.Second,
		WriteTimeout:                  30 * time.Second,
		NoDefaultUserAgentHeader:      true,
		DisableHeaderNamesNormalizing: true,
	}
	return func(d *amqp.Delivery) error {
		req, resp := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
		defer fasthttp.ReleaseRequest(req)
		defer fasthttp.ReleaseResponse(resp)
		req.SetRequestURI(target)
		req.Header.SetMethod(fasthttp.MethodPost)
		req.Header.SetContentType(d.ContentType)
		req.Header.Set("Idempotency-Key", d.MessageId)
		req.SetBodyRaw(d.Body)
		if err := client.Do(req, resp); err != nil {
			return fmt.Errorf("posting: %w", err)
		}
		if resp.StatusCode()/100 != 2 {
			return fmt.Errorf("posting: status %d", resp.StatusCode())
		}
		return nil
	}
}

// acker acknowledges with `multiple` up to the highest tag below which every
// delivery is done. It sends as soon as it has nothing else to take in, so
// that a busy loop acknowledges in ever larger steps.
type acker struct {
	ch      *amqp.Channel
	done    chan uint64
	stopped chan struct{}

	mu  sync.Mutex
	err error
}

func newAcker(ch *amqp.Channel, prefetch int) *acker {
	a := &acker{ch: ch, done: make(chan uint64, prefetch), stopped: make(chan struct{})}
	go a.run()
	return a
}

func (a *acker) ack(d amqp.Delivery) error {
	a.done <- d.DeliveryTag
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.err
}

// stop sends what is left; ack must not be called any more.
func (a *acker) stop() {
	close(a.done)
	<-a.stopped
}

func (a *acker) run() {
	defer close(a.stopped)
	var w watermark
	var sent uint64
	for tag := range a.done {
		w.settle(tag)
		for more := true; more; {
			select {
			case tag, ok := <-a.done:
				if more = ok; ok {
					w.settle(tag)
				}
			default:
				more = false
			}
		}
		if w.low == sent {
			continue
		}
		if err := a.ch.Ack(w.low, true); err != nil && !errors.Is(err, amqp.ErrClosed) {
			a.mu.Lock()
			a.err = err
			a.mu.Unlock()
		}
		sent = w.low
	}
}

// watermark is the highest tag below which everything is settled.
type watermark struct {
	low   uint64
	above map[uint64]struct{}
}

func (w *watermark) settle(tag uint64) {
	if tag != w.low+1 {
		if w.above == nil {
			w.above = make(map[uint64]struct{})
		}
		w.above[tag] = struct{}{}
		return
	}
	w.low = tag
	for len(w.above) > 0 {
		if _, ok := w.above[w.low+1]; !ok {
			return
		}
		w.low++
		delete(w.above, w.low)
	}
}
