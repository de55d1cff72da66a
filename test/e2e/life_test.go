package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/inboxd/inboxd/internal/testenv"
)

// TestSIGTERMUnderLoadEndsInTimeAndRepeatsNothing: requests in flight are
// finished and recorded, what was not started goes back.
func TestSIGTERMUnderLoadEndsInTimeAndRepeatsNothing(t *testing.T) {
	t.Parallel()
	amqpURL := testenv.AMQPURL(t)
	stores(t, func(t *testing.T, storeURL func(*testing.T) string) {
		q := queue(t, amqpURL, "quorum")
		const n, took = 400, 500 * time.Millisecond
		var inFlight atomic.Int64
		handler := newApp(t, func(http.ResponseWriter, *http.Request, string, []byte) {
			inFlight.Add(1)
			time.Sleep(took) // how long this handler takes
			inFlight.Add(-1)
		})
		messages, _ := orders("term", n, 10)
		publish(t, amqpURL, q, messages...)
		d := newDaemon(t, settings{amqp: amqpURL, queue: q, handler: handler.URL, store: storeURL(t)})
		d.start()
		eventually(t, 20*time.Second, "requests are in flight", func() bool { return inFlight.Load() == 16 })
		began := time.Now()
		d.stop()
		if after := time.Since(began); after > took+time.Second {
			t.Errorf("the end took %v, want at most the requests in flight and a second", after)
		}
		if inFlight.Load() != 0 {
			t.Errorf("%d requests were cut", inFlight.Load())
		}
		d.start()
		eventually(t, time.Minute, "every message is handled", func() bool { keys, _ := handler.counts(); return keys == n })
		d.awaitSettled(amqpURL, q, 10*time.Second)
		d.stop()
		if _, total := handler.counts(); total != n {
			t.Errorf("got %d requests for %d messages: something was handled twice", total, n)
		}
		if left, _, err := testenv.QueueState(amqpURL, q); left != 0 || err != nil {
			t.Errorf("left on the queue: %d (%v), want 0", left, err)
		}
	})
}

func TestDrainStopsConsumingAndKeepsTheProcess(t *testing.T) {
	t.Parallel()
	amqpURL := testenv.AMQPURL(t)
	q := queue(t, amqpURL, "quorum")
	release := make(chan struct{})
	handler := newApp(t, func(http.ResponseWriter, *http.Request, string, []byte) { <-release })
	messages, _ := orders("drain", 50, 0)
	publish(t, amqpURL, q, messages...)
	d := newDaemon(t, settings{amqp: amqpURL, queue: q, handler: handler.URL})
	d.start()
	eventually(t, 20*time.Second, "requests are in flight", func() bool { return d.metric("inboxd_in_flight") == 16 })
	drained := make(chan string, 1)
	go func() {
		code, out, stderr := d.cli("drain", "-c", d.config)
		drained <- fmt.Sprintf("exit %d %s%s", code, out, stderr)
	}()
	eventually(t, 10*time.Second, "the daemon is not ready any more", func() bool { c, _ := d.get("/readyz"); return c == 503 })
	select {
	case got := <-drained:
		t.Fatalf("drain did not wait for the requests in flight: %s", got)
	default:
	}
	close(release)
	if got := <-drained; !strings.HasPrefix(got, "exit 0") {
		t.Errorf("drain: got %s, want exit 0", got)
	}
	if c, _ := d.get("/livez"); c != 200 {
		t.Errorf("/livez after the drain: got %d, want 200", c)
	}
	if n, err := testenv.ConsumerCount(amqpURL, q); n != 0 || err != nil {
		t.Errorf("consumers after the drain: got %d (%v), want 0", n, err)
	}
	if _, total := handler.counts(); total != 16 {
		t.Errorf("got %d requests, want the 16 that were in flight", total)
	}
	if left, _, _ := testenv.QueueState(amqpURL, q); left != 34 {
		t.Errorf("left on the queue: %d, want 34", left)
	}
	d.stop()
}

func TestAPauseSurvivesARestart(t *testing.T) {
	t.Parallel()
	amqpURL := testenv.AMQPURL(t)
	q := queue(t, amqpURL, "classic")
	handler := newApp(t, nil)
	d := newDaemon(t, settings{amqp: amqpURL, queue: q, handler: handler.URL})
	d.start()
	d.awaitConsuming(20 * time.Second)
	if code, out, stderr := d.cli("pause", "-c", d.config, "--reason", "maintenance", "billing"); code != 0 {
		t.Fatalf("pause: exit %d %s%s", code, out, stderr)
	}
	eventually(t, 10*time.Second, "nobody consumes", func() bool { n, err := testenv.ConsumerCount(amqpURL, q); return err == nil && n == 0 })
	d.stop()
	messages, _ := orders("pause", 5, 0)
	publish(t, amqpURL, q, messages...)
	d.start()
	eventually(t, 20*time.Second, "the daemon says why it does not consume", func() bool {
		c, body := d.get("/consuming")
		return c == 503 && strings.Contains(body, "maintenance")
	})
	if code, out, stderr := d.cli("resume", "-c", d.config, "billing"); code != 0 {
		t.Fatalf("resume: exit %d %s%s", code, out, stderr)
	}
	eventually(t, 20*time.Second, "every message is handled", func() bool { keys, _ := handler.counts(); return keys == 5 })
	d.stop()
}

func TestASecondSignalEndsAtOnce(t *testing.T) {
	t.Parallel()
	amqpURL := testenv.AMQPURL(t)
	q := queue(t, amqpURL, "classic")
	release := make(chan struct{})
	defer close(release)
	handler := newApp(t, func(http.ResponseWriter, *http.Request, string, []byte) { <-release })
	publish(t, amqpURL, q, amqp.Publishing{MessageId: "x", Body: []byte("{}")})
	d := newDaemon(t, settings{amqp: amqpURL, queue: q, handler: handler.URL})
	d.start()
	eventually(t, 20*time.Second, "a request is in flight", func() bool { return d.metric("inboxd_in_flight") == 1 })
	d.signal(syscall.SIGTERM)
	eventually(t, 10*time.Second, "it drains", func() bool { c, _ := d.get("/readyz"); return c == 503 })
	d.signal(syscall.SIGTERM)
	if code := d.wait(5 * time.Second); code == 0 {
		t.Errorf("exit code: got 0 for an end with a request in flight")
	}
}

func TestShutdownTimeoutCutsWhatDoesNotEnd(t *testing.T) {
	t.Parallel()
	amqpURL := testenv.AMQPURL(t)
	q := queue(t, amqpURL, "quorum")
	release := make(chan struct{})
	defer close(release)
	handler := newApp(t, func(http.ResponseWriter, *http.Request, string, []byte) { <-release })
	publish(t, amqpURL, q, amqp.Publishing{MessageId: "hangs", Body: []byte("{}")})
	d := newDaemon(t, settings{amqp: amqpURL, queue: q, handler: handler.URL, extra: "shutdown_timeout: 2s\n"})
	d.start()
	eventually(t, 20*time.Second, "a request is in flight", func() bool { return d.metric("inboxd_in_flight") == 1 })
	began := time.Now()
	d.signal(syscall.SIGTERM)
	d.wait(10 * time.Second)
	if took := time.Since(began); took < 2*time.Second || took > 5*time.Second {
		t.Errorf("the end took %v, want about shutdown_timeout = 2s", took)
	}
	eventually(t, 10*time.Second, "the message is back on the queue", func() bool {
		n, _, err := testenv.QueueState(amqpURL, q)
		return err == nil && n == 1
	})
}

// TestEveryConfigurationMistakeIsReportedInOneRun, with exit code 2 and without
// a secret.
func TestEveryConfigurationMistakeIsReportedInOneRun(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "bad.yaml")
	const text = `broker:
  url: amqp://user:hunter2canary@127.0.0.1:5672/
  heartbeet: 3
store:
  url: mongodb://u:hunter2canary@h/db
  retention: 7
consumers:
  - name: "bad name"
    queue: ""
    concurrency: 0
    prefetch: 70000
    message_id: [propperty]
    on_missing_id: drop
    max_body: much
    forward:
      url: ftp://u:hunter2canary@127.0.0.1/x
      timeout: 20m
      status: {abc: park, 404: explode}
      token_file: /nonexistent/token
    retry: {hold: 29m}
  - name: two
    queue: q
    forward: {url: "${NO_SUCH_VARIABLE}"}
admin: {listen: "0.0.0.0:9321"}
log: {level: loud}
`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	d := &daemon{t: t}
	for _, command := range []string{"run", "check"} {
		code, out, stderr := d.cli(command, "-c", path)
		if code != 2 {
			t.Errorf("%s: exit code %d, want 2", command, code)
		}
		for _, want := range []string{
			"broker.heartbeet", "store.url", "store.retention", "consumers[0].name", "consumers[0].queue",
			"consumers[0].concurrency", "consumers[0].prefetch", "consumers[0].message_id", "consumers[0].on_missing_id",
			"consumers[0].max_body", "consumers[0].forward.url", "consumers[0].forward.status", "consumers[0].forward.token_file",
			"consumers[1].forward.url", "NO_SUCH_VARIABLE", "admin", "log.level",
		} {
			if !strings.Contains(stderr, want) {
				t.Errorf("%s: the output lacks %s:\n%s", command, want, stderr)
			}
		}
		if strings.Contains(out+stderr, "hunter2canary") {
			t.Errorf("%s: the output shows a password:\n%s%s", command, out, stderr)
		}
	}
	for _, args := range [][]string{{}, {"run"}, {"nonsense"}, {"run", "--no-such-flag"}, {"run", "-c", "/nonexistent"}, {"schema"}, {"parked", "nonsense"}} {
		if code, out, stderr := d.cli(args...); code != 2 || out+stderr == "" {
			t.Errorf("inboxd %v: exit %d, want 2 and words:\n%s%s", args, code, out, stderr)
		}
	}
	for _, args := range [][]string{{"help"}, {"--help"}, {"version"}, {"run", "-h"}, {"check", "--help"}, {"explain", "-h"}, {"parked", "-h"}, {"verify", "-h"}, {"health", "-h"}, {"drain", "-h"}} {
		if code, out, stderr := d.cli(args...); code != 0 || out == "" {
			t.Errorf("inboxd %v: exit %d, want 0 and words on standard output:\n%s%s", args, code, out, stderr)
		}
	}
}

// TestNoSecretAndNoPayloadLeaks plants canaries in every password, body and
// header and looks for them wherever the daemon writes.
func TestNoSecretAndNoPayloadLeaks(t *testing.T) {
	t.Parallel()
	amqpURL, db := testenv.AMQPURL(t), testenv.DatabaseURL(t)
	const canary = "canary8f3a"
	secret := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(secret, []byte(canary+"token"), 0o600); err != nil {
		t.Fatal(err)
	}
	q := queue(t, amqpURL, "classic")
	handler := newApp(t, func(w http.ResponseWriter, r *http.Request, key string, _ []byte) {
		if r.Header.Get("Authorization") != "Bearer "+canary+"token" {
			t.Errorf("Authorization: got %q", r.Header.Get("Authorization"))
		}
		if key == "bad" {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	d := newDaemon(t, settings{
		amqp: amqpURL, queue: q, handler: handler.URL, store: db, logLevel: "debug",
		consumer: quickRetry, forward: "      token_file: " + secret + "\n",
	})
	d.start()
	for _, id := range []string{"good", "bad"} {
		publish(t, amqpURL, q, amqp.Publishing{MessageId: id, Body: []byte(canary + "body"), Headers: amqp.Table{"k": canary + "header"}})
	}
	eventually(t, 20*time.Second, "one processed, one parked", func() bool { return d.outcome("processed") == 1 && d.outcome("parked") == 1 })
	_, metrics := d.get("/metrics")
	_, consuming := d.get("/consuming")
	status := httpGet(t, "http://"+d.admin+"/api/status")
	_, check, _ := d.cli("check", "-c", d.config, "--print")
	d.stop()
	for where, text := range map[string]string{"log": d.readLog(), "metrics": metrics, "/consuming": consuming, "status": status, "check": check} {
		if text == "" {
			t.Errorf("%s: nothing to look at", where)
		}
		for _, leak := range []string{canary, "private", "guest:guest"} { // the passwords of both servers
			if strings.Contains(text, leak) {
				t.Errorf("%s shows %q", where, leak)
			}
		}
	}
}
