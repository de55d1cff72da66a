package e2e

import (
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/inboxd/inboxd/internal/testenv"
)

// TestLargeBodiesStayWithinTheMemoryLimit: the prefetch is sixteen times what the
// memory can hold, and the handler keeps what it has for a while. The limit is
// the one that a container of 256 MiB gives the Go runtime.
func TestLargeBodiesStayWithinTheMemoryLimit(t *testing.T) {
	const n, size, container = 40, 16 << 20, 256 << 20
	amqpURL := testenv.AMQPURL(t)
	for name, tc := range map[string]struct {
		consumer string
		small    int // messages before the large ones
	}{
		"prefetch 64":                   {"    prefetch: 64\n", 0},
		"prefetch auto":                 {"", 0},
		"prefetch 64, grown by the way": {"    prefetch: 64\n", 300},
	} {
		t.Run(name, func(t *testing.T) {
			q := queue(t, amqpURL, "quorum")
			small, _ := orders("small", tc.small, 0)
			publish(t, amqpURL, q, small...)
			for i := range n {
				publish(t, amqpURL, q, amqp.Publishing{MessageId: fmt.Sprintf("large-%d", i), Body: make([]byte, size)})
			}
			n := n + tc.small
			open := make(chan struct{})
			handler := newApp(t, func(w http.ResponseWriter, _ *http.Request, _ string, body []byte) {
				if len(body) == size {
					<-open
				}
				w.WriteHeader(http.StatusOK)
			})
			d := newDaemon(t, settings{amqp: amqpURL, queue: q, handler: handler.URL, consumer: tc.consumer, fast: true})
			d.start(fmt.Sprintf("GOMEMLIMIT=%dMiB", container>>20*9/10))
			eventually(t, time.Minute, "messages are in hand", func() bool { _, total := handler.counts(); return total >= tc.small+3 })
			time.AfterFunc(3*time.Second, func() { close(open) }) // longer than reading may be held back
			eventually(t, 2*time.Minute, "every message is processed", func() bool { return d.outcome("processed") == n })
			if keys, total := handler.counts(); keys != n || total != n {
				t.Errorf("the handler saw %d keys in %d requests, want %d in %d", keys, total, n, n)
			}
			peak := peakMemory(t, d.cmd.Process.Pid)
			t.Logf("peak %d MiB, held back %.1f s, sessions %.0f", peak>>20,
				d.metric("inboxd_reading_held_back_seconds_total"), d.metric("inboxd_broker_sessions_total"))
			if peak >= container {
				t.Errorf("peak memory: got %d MiB, want less than %d", peak>>20, container>>20)
			}
			if got := d.metric("inboxd_broker_sessions_total"); got != 1 {
				t.Errorf("sessions: got %v, want 1", got)
			}
			d.stop()
			if left, _, err := testenv.QueueState(amqpURL, q); left != 0 || err != nil {
				t.Errorf("left on the queue: %d (%v), want none", left, err)
			}
		})
	}
}

// peakMemory is the largest resident size that the process has had, in bytes.
func peakMemory(t *testing.T, pid int) int64 {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Skip("no /proc here")
	}
	_, rest, _ := strings.Cut(string(raw), "VmHWM:")
	kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}
