package forward

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

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
