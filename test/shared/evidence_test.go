package shared

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/inboxd/inboxd/internal/testenv"
)

func TestHandlerThatCommitsAndAnswers500IsAskedOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ n, every int }{
		"always":    {400, 1}, // the breaker must not open: nothing is wrong with a handler that commits
		"sometimes": {400, 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			queue, db := newQueue(t), testenv.DatabaseURL(t)
			conn := orderTables(t, db)
			var requests atomic.Int64
			h := newHandler(t, db, func(w http.ResponseWriter, _ *http.Request, take func() error) {
				if err := take(); err != nil {
					t.Errorf("take: got %v, want a first time", err)
				}
				if requests.Add(1)%int64(c.every) == 0 {
					w.WriteHeader(http.StatusInternalServerError)
				}
			})
			publish(t, queue, messageIDs(c.n)...)
			d := newDaemon(t, settings{queue: queue, handler: h.URL, db: db})
			d.start()
			awaitSettled(t, queue, time.Minute, d)
			if messages, most := h.most(); messages != c.n || most != 1 {
				t.Errorf("got %d messages with up to %d requests, want %d with 1", messages, most, c.n)
			}
			if got := number(t, conn, `select count(*) from orders`); got != c.n {
				t.Errorf("orders: got %d, want %d", got, c.n)
			}
			if got := d.parked(); len(got) != 0 {
				t.Errorf("parked: got %v, want none", got)
			}
			if code := d.stop(); code != 0 {
				t.Errorf("exit code: got %d, want 0", code)
			}
			if left, _, err := testenv.QueueState(testenv.AMQPURL(t), queue); err != nil || left != 0 {
				t.Errorf("left on the queue: got %d, %v, want 0", left, err)
			}
		})
	}
}

func TestHandlerThatAnswers200WithoutCommittingIsFoundOut(t *testing.T) {
	t.Parallel()
	queue, db := newQueue(t), testenv.DatabaseURL(t)
	orderTables(t, db)
	h := newHandler(t, db, func(http.ResponseWriter, *http.Request, func() error) {})
	const n = 20
	publish(t, queue, messageIDs(n)...)
	d := newDaemon(t, settings{queue: queue, handler: h.URL, db: db, consumer: "    concurrency: 32"})
	d.start()
	eventually(t, time.Minute, "all are parked as no_evidence", func() bool { return d.parked()["no_evidence"] == n })
	awaitSettled(t, queue, time.Minute, d)
	if got := d.parked(); len(got) != 1 {
		t.Errorf("parked: got %v, want only no_evidence", got)
	}
	if messages, most := h.most(); messages != n || most != 3 {
		t.Errorf("got %d messages with up to %d requests, want %d with max_attempts, 3", messages, most, n)
	}
}

func TestWarningPolicyAcksWithoutEvidence(t *testing.T) {
	t.Parallel()
	queue, db := newQueue(t), testenv.DatabaseURL(t)
	orderTables(t, db)
	h := newHandler(t, db, func(http.ResponseWriter, *http.Request, func() error) {})
	publish(t, queue, messageIDs(3)...)
	d := newDaemon(t, settings{queue: queue, handler: h.URL, db: db, inbox: ", evidence: warn"})
	d.start()
	awaitSettled(t, queue, time.Minute, d)
	if messages, most := h.most(); messages != 3 || most != 1 {
		t.Errorf("got %d messages with up to %d requests, want 3 with 1", messages, most)
	}
	if log := d.readLog(); strings.Count(log, "acked without evidence") != 3 {
		t.Errorf("got this log, want 3 lines about missing evidence\n%s", log)
	}
}

func TestHandlerThatAnswers202AndCommitsLaterIsAskedOnce(t *testing.T) {
	t.Parallel()
	queue, db := newQueue(t), testenv.DatabaseURL(t)
	conn := orderTables(t, db)
	var commits sync.WaitGroup
	defer commits.Wait()
	h := newHandler(t, db, func(w http.ResponseWriter, r *http.Request, take func() error) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		commits.Go(func() {
			time.Sleep(300 * time.Millisecond)
			if err := take(); err != nil {
				t.Errorf("take: got %v, want a first time", err)
			}
		})
		w.WriteHeader(http.StatusAccepted)
	})
	const n = 30
	publish(t, queue, messageIDs(n)...)
	d := newDaemon(t, settings{queue: queue, handler: h.URL, db: db})
	d.start()
	awaitSettled(t, queue, time.Minute, d)
	if messages, most := h.most(); messages != n || most != 1 {
		t.Errorf("got %d messages with up to %d requests, want %d with 1", messages, most, n)
	}
	if got := number(t, conn, `select count(*) from orders`); got != n {
		t.Errorf("orders: got %d, want %d", got, n)
	}
}

func TestCopiesAtTwoReplicasHaveOneEffect(t *testing.T) {
	t.Parallel()
	queue, db := newQueue(t), testenv.DatabaseURL(t)
	conn := orderTables(t, db)
	h := newHandler(t, db, func(w http.ResponseWriter, _ *http.Request, take func() error) {
		time.Sleep(50 * time.Millisecond) // both copies are here before either commits
		if failed(take()) {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	// Each with a store of its own: nothing but the handler's key is between them.
	a := newDaemon(t, settings{name: "a", queue: queue, handler: h.URL, db: db})
	b := newDaemon(t, settings{name: "b", queue: queue, handler: h.URL, db: db})
	a.start()
	b.start()
	eventually(t, 30*time.Second, "both consume", func() bool {
		_, n, err := testenv.QueueState(testenv.AMQPURL(t), queue)
		return err == nil && n == 2
	})
	const n = 50
	for _, id := range messageIDs(n) {
		publish(t, queue, id, id)
	}
	awaitSettled(t, queue, time.Minute, a, b)
	if got := number(t, conn, `select count(*) from orders`); got != n {
		t.Errorf("orders: got %d, want %d", got, n)
	}
	if h.duplicates == 0 {
		t.Error("no copies met in the handler: this run has shown nothing")
	}
	if got := len(a.parked()) + len(b.parked()); got != 0 {
		t.Errorf("parked: got %d, want none", got)
	}
}

func TestTableThatCannotKeepThePromiseStopsTheStart(t *testing.T) {
	t.Parallel()
	queue, db := newQueue(t), testenv.DatabaseURL(t)
	conn := orderTables(t, db)
	if _, err := conn.Exec(t.Context(), `alter table inbox drop constraint inbox_pkey;`); err != nil {
		t.Fatal(err)
	}
	h := newHandler(t, db, func(http.ResponseWriter, *http.Request, func() error) {})
	publish(t, queue, "m-1")
	d := newDaemon(t, settings{queue: queue, handler: h.URL, db: db})
	d.start()
	select {
	case <-d.end:
	case <-time.After(30 * time.Second):
		t.Fatal("the daemon is still running")
	}
	if code := d.cmd.ProcessState.ExitCode(); code == 0 {
		t.Error("exit code: got 0, want an error")
	}
	if log := d.readLog(); !strings.Contains(log, "no unique key") || !strings.Contains(log, "add primary key (consumer, message_id)") {
		t.Errorf("got this log, want the problem and its remedy\n%s", log)
	}
	if messages, _ := h.most(); messages != 0 {
		t.Errorf("requests: got %d, want none", messages)
	}
}
