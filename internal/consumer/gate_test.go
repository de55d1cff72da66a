package consumer

import (
	"context"
	"crypto/tls"
	"sync/atomic"
	"testing"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
	"github.com/inboxd/inboxd/internal/testenv"
)

func TestAGateThatShutsDuringTheDialLetsNothingIn(t *testing.T) {
	t.Parallel()
	url, queue := testenv.AMQPURL(t), testenv.UniqueName("consumer")
	if err := testenv.DeclareQueue(url, queue, classic); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { testenv.DeleteQueue(url, queue) })
	gate := inbox.NewGate()
	dials := make(chan struct{}, 1)
	credentials := func() ([]string, *tls.Config, error) {
		gate.Shut(inbox.HindranceDraining, "drain")
		dials <- struct{}{}
		return []string{url}, nil, nil
	}
	var calls atomic.Int64
	handler := func(context.Context, *inbox.Delivery) inbox.Result {
		calls.Add(1)
		return inbox.Result{Outcome: inbox.Processed}
	}
	c := New(Options{Broker: Broker{Credentials: credentials}, Consumer: t.Name(), Queue: queue, Prefetch: 4, Grace: time.Second},
		handler, gate, testLog(t), nil)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	<-dials
	for end := time.Now().Add(time.Second); !c.Status().Connected && time.Now().Before(end); time.Sleep(time.Millisecond) {
	}
	eventually(t, 10*time.Second, "the connection is closed again", func() bool { return !c.Status().Connected })
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if n := c.Status().Sessions; n != 0 || calls.Load() != 0 {
		t.Errorf("got %d sessions, %d calls, want none", n, calls.Load())
	}
}
