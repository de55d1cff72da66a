package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/inboxd/inboxd/internal/config"
	"github.com/inboxd/inboxd/internal/forward"
	"github.com/inboxd/inboxd/internal/testenv"
)

// The outages of this file are scaled: what takes a minute takes minute.
// Pauses that bound how quickly a recovery is noticed stay as they are.
const minute = 3 * time.Second

func scaled(o *forward.Options) {
	const scale = time.Minute / minute
	o.Breaker = forward.BreakerOptions{
		GateAfter:    minute,
		MessagePause: 90 * time.Second / scale,
		Window:       10 * time.Second / scale,
	}
}

// inProcess is a daemon inside the test, one life after the other on one store.
type inProcess struct {
	t   *testing.T
	cfg config.Config
	log *lines

	d     *daemon
	stop  context.CancelFunc
	ended chan error
}

// lines counts and keeps what is logged.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}
func (l *lines) String() string { l.mu.Lock(); defer l.mu.Unlock(); return l.text.String() }
func (l *lines) count() int     { return strings.Count(l.String(), "\n") }

func newInProcess(t *testing.T, queue, handler, more string) *inProcess {
	t.Helper()
	cfg, err := config.Parse(strings.NewReader(fmt.Sprintf(`
broker: {url: %q}
store: {url: "sqlite:%s"}
metrics: {listen: ""}
admin: {listen: ""}
consumers:
  - name: billing
    queue: %s
    forward: {url: %q}
%s`, testenv.AMQPURL(t), filepath.Join(t.TempDir(), "inbox.db"), queue, handler, more)), os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	p := &inProcess{t: t, cfg: cfg, log: &lines{}}
	t.Cleanup(func() {
		p.end()
		if t.Failed() {
			t.Logf("the log:\n%s", p.log)
		}
	})
	return p
}

func (p *inProcess) start() {
	ctx, cancel := context.WithCancel(context.Background())
	p.d = newDaemon(p.cfg, slog.New(slog.NewTextHandler(p.log, nil)))
	p.d.tune = scaled
	p.stop, p.ended = cancel, make(chan error, 1)
	d, ended := p.d, p.ended
	go func() { ended <- d.run(ctx) }()
}

func (p *inProcess) end() {
	if p.stop == nil {
		return
	}
	p.stop()
	if err := <-p.ended; err != nil {
		p.t.Errorf("the daemon ended with %v, want nil", err)
	}
	p.stop = nil
}

// metric returns the sum of the series of a metric with the label value, or of
// all where that is "".
func (p *inProcess) metric(name, value string) (sum float64) {
	families, err := p.d.reg.Gather()
	if err != nil {
		p.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetValue() == value || value == "" {
					sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
					break
				}
			}
		}
	}
	return sum
}

func outageQueue(t *testing.T, n int) string {
	t.Helper()
	url, name := testenv.AMQPURL(t), testenv.UniqueName("outage")
	if err := testenv.DeclareQueue(url, name, amqp.Table{"x-queue-type": "quorum"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = testenv.DeleteQueue(url, name) })
	conn, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err == nil {
		err = ch.Confirm(false)
	}
	if err != nil {
		t.Fatal(err)
	}
	var confirms []*amqp.DeferredConfirmation
	for i := range n {
		c, err := ch.PublishWithDeferredConfirm("", name, true, false, amqp.Publishing{
			DeliveryMode: amqp.Persistent, MessageId: fmt.Sprint("m-", i), ContentType: "application/json", Body: []byte("{}"),
		})
		if err != nil {
			t.Fatal(err)
		}
		confirms = append(confirms, c)
	}
	for _, c := range confirms {
		if !c.Wait() {
			t.Fatal("the broker refused a message")
		}
	}
	return name
}

func within(t *testing.T, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

// service is a handler that fails for as long as it is told to.
type service struct {
	failing atomic.Bool

	mu         sync.Mutex
	done       map[string]int // 200s by message
	failed     map[string]int // 500s by message
	deliveries map[string]int // the broker's count of earlier ones, by message
}

func newService() *service {
	return &service{done: map[string]int{}, failed: map[string]int{}, deliveries: map[string]int{}}
}

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	key := r.Header.Get("Idempotency-Key")
	count, _ := strconv.Atoi(r.Header.Get("Amqp-Header-x-delivery-count"))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deliveries[key] = max(s.deliveries[key], count)
	if s.failing.Load() {
		s.failed[key]++
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	s.done[key]++
}

func (s *service) handled() int { s.mu.Lock(); defer s.mu.Unlock(); return len(s.done) }

// TestAHandlerThatFailsForTenMinutesCostsNoMessage: 2,000 messages wait, and the
// daemon is started again in the middle. Time is scaled.
func TestAHandlerThatFailsForTenMinutesCostsNoMessage(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	const n, minutes = 2000, 10
	q := outageQueue(t, n)
	s := newService()
	s.failing.Store(true)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: s}
	go srv.Serve(l)
	defer srv.Close()
	p := newInProcess(t, q, "http://"+l.Addr().String()+"/",
		"    retry: {initial: 25ms, max: 1500ms, max_attempts: 10, hold: 30s}\n")

	p.start()
	begun := time.Now()
	var parked float64
	within(t, 2*time.Minute, "half of the outage is over", func() bool { return time.Since(begun) > minutes*minute/2 })
	parked += p.metric("inboxd_parked_total", "")
	p.end()
	p.start()
	within(t, 2*time.Minute, "the outage is over", func() bool { return time.Since(begun) > minutes*minute })
	parked += p.metric("inboxd_parked_total", "")
	s.mu.Lock()
	tried, requests := len(s.failed), 0
	for id, got := range s.failed {
		requests += got
		if got > 10 {
			t.Errorf("%s took %d failed requests, want at most max_attempts = 10", id, got)
		}
	}
	s.mu.Unlock()
	t.Logf("%d messages took %d failed requests", tried, requests)
	if parked > 0 {
		t.Errorf("%v messages were parked in the outage", parked)
	}
	s.failing.Store(false)
	within(t, 2*time.Minute, "every message is processed", func() bool { return s.handled() == n })
	within(t, 30*time.Second, "nothing is kept for later", func() bool {
		return p.metric("inboxd_parked_messages", "") == 0
	})
	p.end()
	if left, _, err := testenv.QueueState(testenv.AMQPURL(t), q); left != 0 || err != nil {
		t.Errorf("left on the queue: %d (%v), want 0", left, err)
	}
	most := 0
	for id, got := range s.done {
		if got != 1 {
			t.Errorf("%s was processed %d times", id, got)
		}
		most = max(most, s.deliveries[id])
	}
	t.Logf("delivered again at most %d times", most)
	if most > minutes {
		t.Errorf("a message was delivered again %d times in %d minutes, want at most once a minute", most, minutes)
	}
}

// TestAHandlerThatIsGoneCostsNothingAndIsFoundAtOnce: nobody listens, for long
// enough that the consumer is cancelled. Time is scaled.
func TestAHandlerThatIsGoneCostsNothingAndIsFoundAtOnce(t *testing.T) {
	t.Parallel()
	const n = 500
	q := outageQueue(t, n)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	p := newInProcess(t, q, "http://"+addr+"/", "")
	p.start()
	amqpURL := testenv.AMQPURL(t)
	within(t, 30*time.Second, "the breaker opens", func() bool { return p.metric("inboxd_breaker_open", "") == 1 })
	within(t, 30*time.Second, "the consumer is cancelled and everything is back", func() bool {
		messages, consumers, err := testenv.QueueState(amqpURL, q)
		return err == nil && consumers == 0 && messages == n
	})
	begun := time.Now()
	within(t, time.Minute, "more of the outage", func() bool { return time.Since(begun) > 3*minute })
	if got := p.log.count(); got > 60 {
		t.Errorf("%d log lines in the outage, want at most 60", got)
	}

	s := newService()
	if l, err = net.Listen("tcp", addr); err != nil {
		t.Skipf("somebody took the address: %v", err)
	}
	srv := &http.Server{Handler: s}
	go srv.Serve(l)
	defer srv.Close()
	back := time.Now()
	within(t, 30*time.Second, "a message is processed", func() bool { return s.handled() > 0 })
	if took := time.Since(back); took > 2*time.Second {
		t.Errorf("found after %v, want 2s at most", took)
	}
	within(t, 30*time.Second, "every message is processed", func() bool { return s.handled() == n })
	t.Logf("all processed %v after it was back", time.Since(back).Round(time.Millisecond))
	if got := p.metric("inboxd_parked_total", ""); got != 0 {
		t.Errorf("an outage parked %v messages", got)
	}
	p.end()
	for id, got := range s.deliveries {
		if got > 2 {
			t.Errorf("%s was delivered again %d times, want 2 at most", id, got)
		}
	}
}
