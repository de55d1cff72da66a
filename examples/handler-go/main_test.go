package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

const anOrder = `{"order_id": "A-1", "customer": "Ada", "amount": 1999}`

func start(t *testing.T) *service {
	t.Helper()
	s, err := open(filepath.Join(t.TempDir(), "orders.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.db.Close() })
	return s
}

func post(s *service, key, fingerprint, body string) int {
	r := httptest.NewRequest(http.MethodPost, "/messages", strings.NewReader(body))
	r.Header.Set("Idempotency-Key", key)
	r.Header.Set("Inbox-Consumer", "billing")
	r.Header.Set("Inbox-Fingerprint", fingerprint)
	w := httptest.NewRecorder()
	s.routes().ServeHTTP(w, r)
	return w.Code
}

func wantStats(t *testing.T, s *service, requests, effects int64) {
	t.Helper()
	w := httptest.NewRecorder()
	s.routes().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/stats", nil))
	var got map[string]int64
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatalf("stats: %v in %q", err, w.Body)
	}
	if got["requests"] != requests || got["effects"] != effects {
		t.Errorf("stats: got %v, want %d requests and %d effects", got, requests, effects)
	}
}

func TestOneKeyHasOneEffect(t *testing.T) {
	t.Parallel()
	s := start(t)
	for range 3 {
		if got := post(s, "m-1", "00ff", anOrder); got != http.StatusOK {
			t.Errorf("status: got %d, want 200", got)
		}
	}
	wantStats(t, s, 3, 1)
}

func TestManyAtOnceHaveOneEffect(t *testing.T) {
	t.Parallel()
	s := start(t)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			if got := post(s, "m-1", "00ff", anOrder); got != http.StatusOK && got != http.StatusConflict {
				t.Errorf("status: got %d, want 200 or 409", got)
			}
		})
	}
	wg.Wait()
	wantStats(t, s, 16, 1)
}

func TestKeyInFlightIsAnswered409(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.inFlight.Store("billing\x00m-1", true)
	if got := post(s, "m-1", "00ff", anOrder); got != http.StatusConflict {
		t.Errorf("status: got %d, want 409", got)
	}
	wantStats(t, s, 1, 0)
}

func TestKnownKeyWithAnotherBodyIsAnswered422(t *testing.T) {
	t.Parallel()
	s := start(t)
	post(s, "m-1", "00ff", anOrder)
	if got := post(s, "m-1", "11ee", anOrder); got != http.StatusUnprocessableEntity {
		t.Errorf("status: got %d, want 422", got)
	}
	wantStats(t, s, 2, 1)
}

func TestWhatIsNoOrderIsAnswered400AndNotRemembered(t *testing.T) {
	t.Parallel()
	s := start(t)
	for _, body := range []string{"", "{", `{"order_id": ""}`, `{"order_id": "A-1", "amount": -1}`} {
		if got := post(s, "m-1", "00ff", body); got != http.StatusBadRequest {
			t.Errorf("status for %q: got %d, want 400", body, got)
		}
	}
	if got := post(s, "m-1", "00ff", anOrder); got != http.StatusOK {
		t.Errorf("status of the right order after the wrong ones: got %d, want 200", got)
	}
	wantStats(t, s, 5, 1)
}

func TestFailedEffectLeavesNoKeyBehind(t *testing.T) {
	t.Parallel()
	s := start(t)
	if _, err := s.db.Exec(`ALTER TABLE orders RENAME TO away`); err != nil {
		t.Fatal(err)
	}
	if got := post(s, "m-1", "00ff", anOrder); got != http.StatusInternalServerError {
		t.Errorf("status without a table of orders: got %d, want 500", got)
	}
	if _, err := s.db.Exec(`ALTER TABLE away RENAME TO orders`); err != nil {
		t.Fatal(err)
	}
	if got := post(s, "m-1", "00ff", anOrder); got != http.StatusOK {
		t.Errorf("status of the next attempt: got %d, want 200", got)
	}
	wantStats(t, s, 2, 1)
}
