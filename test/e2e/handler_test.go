package e2e

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/inboxd/inboxd/internal/testenv"
)

func itoa(n int) string { return strconv.Itoa(n) }

const quickRetry = "    retry: {initial: 10ms, max: 50ms, max_attempts: 3, hold: 1m}\n"

// TestEveryRowOfTheAnswerTable: what the handler answers first (and 200 ever
// after), and how the message ends.
func TestEveryRowOfTheAnswerTable(t *testing.T) {
	t.Parallel()
	amqpURL := testenv.AMQPURL(t)
	type row struct {
		first    func(w http.ResponseWriter, attempt int) bool // false: answer 200
		outcome  string
		requests int
	}
	status := func(code, times int) func(http.ResponseWriter, int) bool {
		return func(w http.ResponseWriter, attempt int) bool {
			if times > 0 && attempt > times {
				return false
			}
			w.WriteHeader(code)
			return true
		}
	}
	action := func(code int, action string, times int) func(http.ResponseWriter, int) bool {
		return func(w http.ResponseWriter, attempt int) bool {
			if times > 0 && attempt > times {
				return false
			}
			w.Header().Set("Inbox-Action", action)
			w.WriteHeader(code)
			return true
		}
	}
	rows := map[string]row{}
	for _, code := range []int{200, 201, 202, 204, 299} {
		rows[fmt.Sprint(code)] = row{status(code, 0), "processed", 1}
	}
	for _, code := range []int{409, 425, 408, 502, 504} { // not attempts: more of them than max_attempts
		rows[fmt.Sprintf("%d five times", code)] = row{status(code, 5), "processed", 6}
	}
	rows["500 twice"] = row{status(500, 2), "processed", 3}
	rows["500 for ever"] = row{status(500, 0), "parked", 3}
	rows["501 for ever"] = row{status(501, 0), "parked", 3}
	for _, code := range []int{400, 413, 415, 422} {
		rows[fmt.Sprintf("%d", code)] = row{status(code, 0), "parked", 1}
	}
	rows["ack over 500"] = row{action(500, "ack", 0), "processed", 1}
	rows["park over 200"] = row{action(200, "park", 0), "parked", 1}
	rows["retry over 200"] = row{action(200, "retry", 2), "processed", 3}
	rows["404 by override"] = row{status(404, 0), "parked", 1}

	for name, want := range rows {
		// A daemon for each: the failures of several rows together would open the
		// breaker, which is another test's business.
		t.Run(name, func(t *testing.T) {
			q := queue(t, amqpURL, "quorum")
			handler := newApp(t, func(w http.ResponseWriter, r *http.Request, _ string, _ []byte) {
				attempt, _ := strconv.Atoi(r.Header.Get("Inbox-Attempt"))
				if !want.first(w, attempt) {
					w.WriteHeader(http.StatusOK)
				}
			})
			d := newDaemon(t, settings{
				amqp: amqpURL, queue: q, handler: handler.URL,
				consumer: quickRetry,
				forward:  "      status: {404: park}\n",
			})
			publish(t, amqpURL, q, amqp.Publishing{MessageId: name, Body: []byte("{}")})
			d.start()
			eventually(t, 30*time.Second, "the message ends "+want.outcome, func() bool { return d.outcome(want.outcome) == 1 })
			if got := handler.seen(strings.ReplaceAll(name, " ", "%20")); got != want.requests {
				t.Errorf("got %d requests, want %d", got, want.requests)
			}
			d.stop()
		})
	}
}

// TestAHandlerThatDiesOnARequestGetsEachAttemptOnce: the HTTP library must not
// replay a request by itself.
func TestAHandlerThatDiesOnARequestGetsEachAttemptOnce(t *testing.T) {
	t.Parallel()
	amqpURL := testenv.AMQPURL(t)
	q := queue(t, amqpURL, "classic")
	var numbers sync.Map
	handler := newApp(t, func(w http.ResponseWriter, r *http.Request, key string, _ []byte) {
		if !strings.HasPrefix(key, "die") {
			return
		}
		if _, again := numbers.LoadOrStore(r.Header.Get("Inbox-Attempt"), true); again {
			t.Errorf("attempt %s came twice", r.Header.Get("Inbox-Attempt"))
		}
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		conn.(*net.TCPConn).SetLinger(0)
		conn.Close()
	})
	d := newDaemon(t, settings{
		amqp: amqpURL, queue: q, handler: handler.URL,
		consumer: "    concurrency: 8\n    prefetch: 8\n" + quickRetry,
	})
	warm, _ := orders("warm", 50, 0) // a pool of warm connections, each good for a replay
	publish(t, amqpURL, q, warm...)
	d.start()
	eventually(t, 20*time.Second, "the warm-up is handled", func() bool { return d.outcome("processed") == 50 })
	publish(t, amqpURL, q, amqp.Publishing{MessageId: "die", Body: []byte("{}")})
	eventually(t, 20*time.Second, "the message is parked", func() bool { return d.outcome("parked") == 1 })
	// Three that count, and the one that a stale connection may cost.
	if got := handler.seen("die"); got < 3 || got > 4 {
		t.Errorf("got %d requests, want max_attempts = 3, and one more where a reused connection was cut", got)
	}
	d.stop()
}

func TestOddAnswersAreReadWithinBounds(t *testing.T) {
	t.Parallel()
	amqpURL := testenv.AMQPURL(t)
	q := queue(t, amqpURL, "classic")
	bomb := gzipOf(t, 64<<20)
	handler := newApp(t, func(w http.ResponseWriter, r *http.Request, key string, _ []byte) {
		switch key {
		case "huge":
			for range 64 {
				if _, err := w.Write(make([]byte, 1<<20)); err != nil {
					return
				}
			}
		case "bomb":
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(bomb)
		case "redirect":
			http.Redirect(w, r, "/elsewhere", http.StatusFound)
		case "late":
			time.Sleep(300 * time.Millisecond) // the answer itself is slow here
		}
	})
	d := newDaemon(t, settings{
		amqp: amqpURL, queue: q, handler: handler.URL + "/in",
		consumer: "    retry: {initial: 10ms, max: 50ms, max_attempts: 1, hold: 1m}\n",
	})
	d.start()
	d.awaitConsuming(20 * time.Second)
	for _, id := range []string{"huge", "bomb", "late"} {
		before := d.outcome("processed")
		publish(t, amqpURL, q, amqp.Publishing{MessageId: id, Body: []byte("{}")})
		eventually(t, 15*time.Second, id+" is processed", func() bool { return d.outcome("processed") == before+1 })
	}
	if rss := d.metric("process_resident_memory_bytes"); rss > 150<<20 {
		t.Errorf("the daemon takes %.0f MiB after a huge answer and a gzip bomb", rss/(1<<20))
	}
	publish(t, amqpURL, q, amqp.Publishing{MessageId: "redirect", Body: []byte("{}")})
	eventually(t, 15*time.Second, "the redirect is parked", func() bool { return d.outcome("parked") == 1 })
	if got := d.metric("inboxd_forward_requests_total", `result="done"`); got != 3 {
		t.Errorf("a redirect was taken for a success: %v done, want 3", got)
	}
	d.stop()
}

func gzipOf(t *testing.T, n int) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := io.CopyN(w, zeros{}, int64(n)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// TestAHandlerThatIsGoneCostsNoMessageAnAttempt: 500 messages wait while nothing
// listens; then it comes back.
func TestAHandlerThatIsGoneCostsNoMessageAnAttempt(t *testing.T) {
	t.Parallel()
	amqpURL := testenv.AMQPURL(t)
	q := queue(t, amqpURL, "quorum")
	addr := testenv.FreeAddr(t)
	var redelivered atomic.Int64
	handler := &app{requests: map[string]int{}, bodies: map[string][32]byte{}}
	handler.answer = func(_ http.ResponseWriter, r *http.Request, _ string, _ []byte) {
		if r.Header.Get("Inbox-Redelivered") == "true" {
			redelivered.Add(1)
		}
	}
	d := newDaemon(t, settings{amqp: amqpURL, queue: q, handler: "http://" + addr + "/"})
	messages, _ := orders("gone", 500, 0)
	publish(t, amqpURL, q, messages...)
	d.start()
	eventually(t, 20*time.Second, "the breaker opens", func() bool { return d.metric("inboxd_breaker_open") == 1 })
	// A minute of outage, during which the consumer is cancelled.
	eventually(t, 90*time.Second, "the consumer is cancelled after a minute", func() bool {
		n, err := testenv.ConsumerCount(amqpURL, q)
		return err == nil && n == 0 && d.metric("inboxd_breaker_open") == 1
	})
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: handler}
	go srv.Serve(l)
	defer srv.Close()
	began := time.Now()
	eventually(t, 30*time.Second, "everything is handled", func() bool { keys, _ := handler.counts(); return keys == 500 })
	t.Logf("recovered in %v", time.Since(began))
	if parked := d.outcome("parked"); parked != 0 {
		t.Errorf("an outage parked %d messages", parked)
	}
	if n := redelivered.Load(); n > 64 {
		t.Errorf("%d messages were redelivered, want at most what one prefetch holds, twice", n)
	}
	d.stop()
	if _, total := handler.counts(); total != 500 {
		t.Errorf("got %d requests, want 500", total)
	}
}

// TestAHandlerThatRefusesEverythingDoesNotParkTheQueue: ten different messages
// refused and none taken since mean that the set-up is wrong.
func TestAHandlerThatRefusesEverythingDoesNotParkTheQueue(t *testing.T) {
	t.Parallel()
	amqpURL := testenv.AMQPURL(t)
	for name, answer := range map[string]func(w http.ResponseWriter, r *http.Request){
		"DisallowedHost": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, "DisallowedHost at /messages\nInvalid HTTP_HOST header: '127.0.0.1:8000'. You may need to add '127.0.0.1' to ALLOWED_HOSTS.")
		},
		"content_type": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusUnprocessableEntity)
			fmt.Fprint(w, `{"detail":[{"type":"model_attributes_type","loc":["body"],"msg":"Input should be a valid dictionary or object to extract fields from"}]}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := queue(t, amqpURL, "classic")
			handler := newApp(t, func(w http.ResponseWriter, r *http.Request, _ string, _ []byte) { answer(w, r) })
			var messages []amqp.Publishing
			for i := range 200 { // without a content type, as a plain client sends them
				messages = append(messages, amqp.Publishing{MessageId: fmt.Sprintf("r-%d", i), Body: []byte(`{"a":1}`)})
			}
			publish(t, amqpURL, q, messages...)
			d := newDaemon(t, settings{amqp: amqpURL, queue: q, handler: handler.URL, consumer: "    concurrency: 1\n    prefetch: 10\n"})
			d.start()
			eventually(t, 30*time.Second, "the breaker opens", func() bool { return d.metric("inboxd_breaker_open") == 1 })
			if parked := d.outcome("parked"); parked > 10 {
				t.Errorf("got %d parked, want at most 10", parked)
			}
			d.kill()
			if log := d.readLog(); !strings.Contains(log, name) && !strings.Contains(log, "ALLOWED_HOSTS") {
				t.Errorf("the log does not name the likely cause (%s):\n%s", name, log)
			}
		})
	}
}
