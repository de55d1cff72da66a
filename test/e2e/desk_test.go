package e2e

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/inboxd/inboxd/internal/testenv"
)

// TestTenThousandParkedMessagesAreReplayed: with progress, stopped in the middle
// and resumed, and none of them swallowed by deduplication.
func TestTenThousandParkedMessagesAreReplayed(t *testing.T) {
	t.Parallel()
	const n = 10_000
	amqpURL := testenv.AMQPURL(t)
	stores(t, func(t *testing.T, storeURL func(*testing.T) string) {
		q := queue(t, amqpURL, "classic")
		var mended atomic.Bool
		handler := newApp(t, nil)
		handler.answer = func(w http.ResponseWriter, _ *http.Request, _ string, _ []byte) {
			if !mended.Load() {
				// By name, so that it is this message and not the set-up.
				w.Header().Set("Inbox-Action", "park")
				w.WriteHeader(http.StatusUnprocessableEntity)
			}
		}
		messages, _ := orders("p", n, 0)
		publish(t, amqpURL, q, messages...)
		d := newDaemon(t, settings{
			amqp: amqpURL, queue: q, handler: handler.URL, store: storeURL(t), fast: true,
			consumer: "    concurrency: 64\n    prefetch: 500\n",
		})
		d.start()
		eventually(t, 3*time.Minute, "all are parked", func() bool { return d.outcome("parked") == n })
		mended.Store(true)

		code, out, stderr := d.cli("parked", "replay", "-c", d.config, "--cause", "rejected", "--rate", "2000", "--detach", "--json", "--reason", "mended")
		if code != 0 {
			t.Fatalf("parked replay: exit %d\n%s%s", code, out, stderr)
		}
		run := between(out, `"id":"`, `"`)
		eventually(t, time.Minute, "some are replayed", func() bool { return d.outcome("processed") > 500 })
		if code, out, stderr = d.cli("parked", "stop", "-c", d.config, run); code != 0 {
			t.Fatalf("parked stop: exit %d\n%s%s", code, out, stderr)
		}
		// What was made due goes on; the rest waits for the word to go on.
		eventually(t, time.Minute, "what was due is done", func() bool {
			_, list, _ := d.cli("parked", "list", "-c", d.config, "--json", "--state", "deferred")
			return !strings.Contains(list, `"message_id"`)
		})
		if done := d.outcome("processed"); done == n {
			t.Error("the run was over before it was stopped; the test shows nothing")
		}
		code, out, stderr = d.cli("parked", "resume", "-c", d.config, run)
		if code != 0 || !strings.Contains(out+stderr, "10,000") && !strings.Contains(out+stderr, "10000") {
			t.Errorf("parked resume: exit %d, want 0 and the count\n%s%s", code, out, stderr)
		}
		eventually(t, 2*time.Minute, "all are processed", func() bool { return d.outcome("processed") == n })
		if keys, total := handler.counts(); keys != n || total != 2*n {
			t.Errorf("got %d keys in %d requests, want %d in %d", keys, total, n, 2*n)
		}
		if _, list, _ := d.cli("parked", "list", "-c", d.config, "--json"); strings.Contains(list, `"message_id"`) {
			t.Error("something is parked still")
		}
		d.stop()
		t.Logf("the command said:\n%s%s", out, stderr)
	})
}
