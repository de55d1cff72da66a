package consumer

import (
	"errors"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/inboxd/inboxd/internal/testenv"
)

func examine(t *testing.T, url, queue string, tune func(*Options)) string {
	t.Helper()
	o := Options{Broker: Broker{Credentials: URLs(url)}, Consumer: "c", Queue: queue}
	if tune != nil {
		tune(&o)
	}
	var b strings.Builder
	for _, f := range Examine(t.Context(), o) {
		b.WriteString(string(f.Level) + ": " + f.Subject + ": " + f.Detail + " [" + f.Remedy + "]\n")
	}
	return strings.ReplaceAll(b.String(), queue, "Q")
}

func TestExamineNamesWhatIsWrongWithAQueue(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	for name, tc := range map[string]struct {
		args  amqp.Table
		tune  func(*Options)
		want  []string
		never []string
	}{
		"classic": {classic, nil, []string{"ok: queue Q: exists; 0 messages ready, 0 consumers", "is a classic queue"}, []string{"fail", "warn"}},
		"no type": {amqp.Table{}, nil, []string{"is a classic queue"}, []string{"fail", "warn"}},
		"quorum":  {quorum, nil, []string{"is a quorum queue", "warn: queue Q: has no dead-letter exchange"}, []string{"fail"}},
		"all known": {amqp.Table{
			"x-queue-type": "quorum", "x-dead-letter-exchange": "the dlx", "x-message-ttl": 86400000, "x-single-active-consumer": true, "x-max-length": 1000, "x-delivery-limit": 7,
		}, func(o *Options) { o.Retention = time.Hour }, []string{
			"is a quorum queue", `dead-letters to exchange "the dlx"`, "warn: queue Q: keeps messages for up to 24h0m0s", "single active consumer", "delivery limit of 7",
		}, []string{"fail"}},
		"classic with TTL":         {amqp.Table{"x-message-ttl": 5000, "x-dead-letter-exchange": "5"}, nil, []string{"is a classic queue", "waited for 5s", `dead-letters to exchange "5"`}, []string{"fail", "warn"}},
		"stream":                   {amqp.Table{"x-queue-type": "stream"}, nil, []string{"fail: queue Q: the queue is a stream"}, nil},
		"missing":                  {nil, nil, []string{"fail: queue Q: does not exist"}, nil},
		"missing, to be declared":  {nil, func(o *Options) { o.Declare = &Declare{} }, []string{"ok: queue Q: does not exist; it will be declared"}, []string{"fail"}},
		"other type than declared": {quorum, func(o *Options) { o.Declare = &Declare{Type: "classic"} }, []string{"fail: queue Q: is a quorum queue, and would be declared as classic"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			queue := testenv.UniqueName("examine")
			if tc.args != nil {
				if err := testenv.DeclareQueue(url, queue, tc.args); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { testenv.DeleteQueue(url, queue) })
			}
			got := examine(t, url, queue, tc.tune)
			for _, want := range tc.want {
				if !strings.Contains(got, want) {
					t.Errorf("findings lack %q:\n%s", want, got)
				}
			}
			for _, never := range tc.never {
				if strings.Contains(got, never+":") {
					t.Errorf("findings have %q:\n%s", never, got)
				}
			}
			_, _, err := testenv.QueueState(url, queue)
			if exists := err == nil; exists != (tc.args != nil) {
				t.Errorf("the queue exists: %t, want %t as before", exists, tc.args != nil)
			}
		})
	}
}

func TestExamineNeverCreatesAQueueThatVanishes(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	d := dialer{broker: Broker{Credentials: URLs(url)}.withDefaults()}
	conn, err := d.dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.link.sever()
	queue := testenv.UniqueName("vanished")
	call := func(what string, f func() error) error { return conn.link.watch(5*time.Second, what, f) }
	if facts, err := learn(conn.Connection, queue, call); err == nil || facts.known {
		t.Errorf("learn = %+v, %v, want an error", facts, err)
	}
	var ae *amqp.Error
	if _, _, err := testenv.QueueState(url, queue); !errors.As(err, &ae) || ae.Code != amqp.NotFound {
		t.Errorf("state of the queue = %v, want not found", err)
	}
}

func TestExamineWarnsOfASecondConsumerOnAnEmbeddedStore(t *testing.T) {
	t.Parallel()
	r := startRig(t, rigOptions{args: classic})
	r.consuming(10 * time.Second)
	got := examine(t, r.url, r.queue, func(o *Options) { o.EmbeddedStore = true })
	if !strings.Contains(got, "warn: queue Q: has 1 consumers") {
		t.Errorf("findings lack the warning:\n%s", got)
	}
}

func TestExamineTellsOfEachNodeThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	dead, via := proxied(t, url)
	dead.Close()
	queue := testenv.UniqueName("examine")
	got := examine(t, url, queue, func(o *Options) { o.Broker.Credentials = URLs(via, "amqp://u:canary@%zz", url) })
	for _, want := range []string{"fail: broker: connecting to " + dead.Addr, "broker URL number 2 cannot be parsed", "ok: broker: ", "fail: queue Q: does not exist"} {
		if !strings.Contains(got, want) {
			t.Errorf("findings lack %q:\n%s", want, got)
		}
	}
	if strings.Contains(got, "canary") {
		t.Errorf("findings hold a secret:\n%s", got)
	}
}

func TestStreamIsRefused(t *testing.T) {
	t.Parallel()
	r := startRig(t, rigOptions{args: amqp.Table{"x-queue-type": "stream"}})
	r.consuming(10 * time.Second)
	r.publish(0, 10)
	eventually(t, 10*time.Second, "the stream is refused", func() bool { return r.c.Status().LastError == ErrStream.Error() })
	if distinct, _ := r.calls(); distinct != 0 {
		t.Errorf("messages handled = %d, want 0", distinct)
	}
}

func TestMessageCopiedFromAStreamIsNoReasonToRefuseAQueue(t *testing.T) {
	t.Parallel()
	r := startRig(t, rigOptions{args: classic})
	r.publish(0, 10, func(_ int, p *amqp.Publishing) { p.Headers = amqp.Table{streamOffset: int64(1)} })
	eventually(t, 10*time.Second, "every message was handled", func() bool { d, _ := r.calls(); return d == 10 })
	if n := r.c.Status().Sessions; n != 1 {
		t.Errorf("sessions = %d, want 1", n)
	}
}
