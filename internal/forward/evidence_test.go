package forward

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/inboxd/inboxd/internal/inbox"
)

// A handler that commits and then fails to say so is neither retried nor held
// against the application, however often it does.
func TestEvidenceMakesAFailedAnswerDone(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
	}))
	defer srv.Close()
	committed := true
	f, err := New(Options{
		ConsumerName: "billing", URL: srv.URL,
		Evidence: func(d *inbox.Delivery) bool { return committed && d.ID == "a" },
	}, inbox.NewGate(), slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		if a := f.Forward(t.Context(), &inbox.Delivery{ID: "a"}); a.Verdict != inbox.Done || a.Status != http.StatusInternalServerError {
			t.Fatalf("got %v (status %d, %v), want done", a.Verdict, a.Status, a.Err)
		}
	}
	if s := f.Status(); s.Breaker != "closed" {
		t.Errorf("breaker: got %s, want closed", s.Breaker)
	}
	committed = false
	if a := f.Forward(t.Context(), &inbox.Delivery{ID: "a"}); a.Verdict != inbox.Failed {
		t.Errorf("without evidence: got %v, want failed", a.Verdict)
	}
}

// A replay is a person's will, and a deferral has waited for its time: the first
// request of either is no retry, and waits for no budget.
func TestTheFirstRequestOfAReplayNeedsNoBudget(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer srv.Close()
	f, err := New(Options{ConsumerName: "billing", URL: srv.URL, Concurrency: 1}, inbox.NewGate(),
		slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	spent, cancel := context.WithCancel(t.Context())
	cancel()
	for f.budget.take(spent) == nil { // until a retry would have to wait
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	for range 100 { // more than the trickle of retries lets through in that time
		d := &inbox.Delivery{ID: "a", Requests: 7}
		if a := f.Forward(ctx, d); a.Verdict != inbox.Done {
			t.Fatalf("got %v (%v), want done", a.Verdict, a.Err)
		}
	}
}
