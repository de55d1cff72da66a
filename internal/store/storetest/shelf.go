package storetest

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
	"github.com/inboxd/inboxd/internal/store"
)

// parked is a parked message with every field set.
func parked(id, body string) *inbox.ParkedMessage {
	at := time.Date(2026, 3, 1, 12, 0, 0, 123e6, time.UTC)
	return &inbox.ParkedMessage{
		Consumer: Consumer, MessageID: inbox.MessageID(id), Fingerprint: fingerprint(7),
		Reason: inbox.AttemptsUsed, State: inbox.StateParked, Attempts: 10, Requests: 12, Slow: 1,
		LastStatus: 500, Answer: []byte("oh \x00\xff"), Error: "status 500", Queue: "orders.paid", Redelivered: true,
		FirstReceived: at, LastAttempt: at.Add(time.Minute), ParkedAt: at.Add(2 * time.Minute),
		Message: inbox.Message{
			Exchange: "orders", RoutingKey: "paid.eu",
			Properties: inbox.Properties{
				ContentType: "application/json", DeliveryMode: 2, Priority: 9, CorrelationID: "\xff\x00",
				MessageID: id, Timestamp: time.Unix(1767225600000, 0).UTC(), Type: "paid",
			},
			Headers: inbox.Table{
				"tenant": "eu", "n": int64(1) << 40, "raw": []byte{0, 255}, "when": at.Truncate(time.Second),
				"deep": inbox.Table{"list": []any{true, nil, "x"}},
			},
			Body: []byte(body),
		},
	}
}

func deferred(id string, due time.Time) *inbox.ParkedMessage {
	m := parked(id, id)
	m.State, m.Reason, m.Due = inbox.StateDeferred, inbox.NoReason, due.UTC().Truncate(time.Millisecond)
	return m
}

func park(t testing.TB, s store.Store, m *inbox.ParkedMessage) *inbox.ParkedMessage {
	t.Helper()
	must(t, s.Park(t.Context(), m))
	if m.ID == "" {
		t.Fatal("Park: got no ID")
	}
	return m
}

func get(t testing.TB, s store.Store, id string) *inbox.ParkedMessage {
	t.Helper()
	m, err := s.GetParked(t.Context(), id)
	must(t, err)
	return m
}

func take(t testing.TB, s store.Store, n int) []*inbox.ParkedMessage {
	t.Helper()
	messages, err := s.TakeDue(t.Context(), Consumer, n)
	must(t, err)
	return messages
}

func ids(messages []*inbox.ParkedMessage) []string {
	list := []string{}
	for _, m := range messages {
		list = append(list, string(m.MessageID))
	}
	return list
}

func wantIDs(t testing.TB, what string, messages []*inbox.ParkedMessage, want ...string) {
	t.Helper()
	if got := ids(messages); !slices.Equal(got, append([]string{}, want...)) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func same(t testing.TB, what string, got, want *inbox.ParkedMessage) {
	t.Helper()
	g, w := *got, *want
	if len(g.Body) == 0 && len(w.Body) == 0 {
		g.Body, w.Body = nil, nil
	}
	if len(g.Answer) == 0 && len(w.Answer) == 0 {
		g.Answer, w.Answer = nil, nil
	}
	if !reflect.DeepEqual(g, w) {
		t.Errorf("%s:\n got %+v\nwant %+v", what, g, w)
	}
}

func testParkWhole(t *testing.T, p Place) {
	s := p.Open(t, Options{})
	for _, m := range []*inbox.ParkedMessage{
		parked("a", `{"n":1}`),
		parked("b", "\x00\xff\n"),
		deferred("c", time.Now().Add(time.Hour)),
		{Consumer: Consumer, State: inbox.StateParked, Reason: inbox.MissingID, ParkedAt: time.Unix(1, 0).UTC()},
	} {
		park(t, s, m)
		same(t, m.ID, get(t, s, m.ID), m)
	}
	// Text for people may hold anything.
	m := parked("text", "")
	m.Error, m.Queue = "nul \x00 and \xff", "q\x00"
	park(t, s, m)
	get(t, s, m.ID)
	_, err := s.GetParked(t.Context(), "nowhere")
	wantNotFound(t, "GetParked", err)
}

func testLargeBody(t *testing.T, p Place) {
	s := p.Open(t, Options{})
	m := parked("large", "")
	m.Body = make([]byte, 16<<20)
	_, _ = rand.Read(m.Body)
	park(t, s, m)
	if got := get(t, s, m.ID).Body; !bytes.Equal(got, m.Body) {
		t.Errorf("body: got %d bytes, want the %d that were parked", len(got), len(m.Body))
	}
	record(t, s, claim(t, s, key("large"), fingerprint(1)))
}

func testParkMerge(t *testing.T, p Place) {
	s := p.Open(t, Options{})
	first := park(t, s, deferred("a", time.Now().Add(time.Hour)))
	again := parked("a", "a")
	again.Attempts, again.FirstReceived = 1, first.FirstReceived.Add(time.Hour)
	park(t, s, again)
	if again.ID != first.ID {
		t.Errorf("the same message again: got ID %s, want %s", again.ID, first.ID)
	}
	got := get(t, s, first.ID)
	if got.State != inbox.StateParked || got.Reason != again.Reason {
		t.Errorf("got %s, %v, want the newer word: %s, %v", got.State, got.Reason, again.State, again.Reason)
	}
	if got.Attempts != first.Attempts || !got.FirstReceived.Equal(first.FirstReceived) {
		t.Errorf("got %d attempts since %v, want what was known: %d since %v",
			got.Attempts, got.FirstReceived, first.Attempts, first.FirstReceived)
	}
	if other := park(t, s, parked("a", "other body")); other.ID == first.ID {
		t.Error("another body under the same message ID took the place of the first")
	}
	elsewhere := parked("a", "a")
	elsewhere.Consumer = "mail"
	if park(t, s, elsewhere); elsewhere.ID == first.ID {
		t.Error("another consumer's message took the place of the first")
	}
}

func testParkWithoutID(t *testing.T, p Place) {
	s := p.Open(t, Options{})
	a, b := park(t, s, parked("", "same")), park(t, s, parked("", "same"))
	if a.ID == b.ID {
		t.Errorf("two messages without an ID became one, %s", a.ID)
	}
}

func testParkReplace(t *testing.T, p Place) {
	s := p.Open(t, Options{})
	park(t, s, deferred("a", time.Now().Add(-time.Second)))
	taken := take(t, s, 1)[0]
	id := taken.ID
	taken.Attempts, taken.Due = 11, time.Now().Add(-time.Second).UTC().Truncate(time.Millisecond)
	park(t, s, taken)
	if taken.ID != id {
		t.Errorf("ID: got %s, want %s", taken.ID, id)
	}
	same(t, "replaced", get(t, s, id), taken)
	wantIDs(t, "nobody's any more", take(t, s, 1), "a")

	// Discarded while it was processed: what came of it is kept all the same.
	must(t, s.Discard(t.Context(), id))
	park(t, s, taken)
	same(t, "kept", get(t, s, taken.ID), taken)

	// And where the broker delivered it again meanwhile, it is still one.
	must(t, s.Discard(t.Context(), taken.ID))
	copied := park(t, s, deferred("a", time.Now().Add(time.Hour)))
	taken.ID = id
	park(t, s, taken)
	if taken.ID != copied.ID {
		t.Errorf("ID: got %s, want that of the copy, %s", taken.ID, copied.ID)
	}
}

// What was parked without an ID may turn out to be one message, once the right
// source is configured.
func testParkTurnsOutTheSame(t *testing.T, p Place) {
	s := p.Open(t, Options{})
	for range 2 {
		m := deferred("", time.Now().Add(-time.Minute))
		m.Replays = 3
		park(t, s, m)
	}
	for _, m := range take(t, s, 10) {
		m.MessageID, m.State, m.Replays = "a", inbox.StateParked, 0
		park(t, s, m)
		if got := get(t, s, m.ID); got.MessageID != "a" || got.Replays != 3 {
			t.Errorf("got message ID %q with %d replays, want a with 3", got.MessageID, got.Replays)
		}
	}
	left, err := s.ListParked(t.Context(), inbox.ParkedFilter{}, "", 10)
	must(t, err)
	wantIDs(t, "one message", left, "a")
}

func testTakeDue(t *testing.T, p Place) {
	s := p.Open(t, Options{})
	now := time.Now()
	park(t, s, deferred("later", now.Add(-time.Minute)))
	park(t, s, deferred("first", now.Add(-time.Hour)))
	park(t, s, deferred("not-due", now.Add(time.Hour)))
	park(t, s, parked("parked", ""))
	other := deferred("other", now.Add(-time.Hour))
	other.Consumer = "mail"
	park(t, s, other)

	got := take(t, s, 1)
	wantIDs(t, "oldest due", got, "first")
	same(t, "taken", got[0], get(t, s, got[0].ID))
	wantIDs(t, "the rest", take(t, s, 10), "later")
	wantIDs(t, "again", take(t, s, 10))
}

func testTakeConcurrently(t *testing.T, p Place) {
	s := p.Open(t, Options{})
	stores := []store.Store{s}
	if p.Replicas {
		stores = append(stores, p.Open(t, Options{}), p.Open(t, Options{}))
	}
	const n = 60
	for i := range n {
		park(t, s, deferred(fmt.Sprint(i), time.Now().Add(-time.Minute)))
	}
	var mu sync.Mutex
	taken := make(map[string]int)
	var wg sync.WaitGroup
	for _, s := range stores {
		for range 4 {
			wg.Go(func() {
				for misses := 0; misses < 3; {
					messages, err := s.TakeDue(t.Context(), Consumer, 3)
					if err != nil {
						t.Error(err)
						return
					}
					if len(messages) == 0 {
						misses++
					}
					mu.Lock()
					for _, m := range messages {
						taken[m.ID]++
					}
					mu.Unlock()
				}
			})
		}
	}
	wg.Wait()
	for id, times := range taken {
		if times != 1 {
			t.Errorf("%s: taken %d times, want once", id, times)
		}
	}
	if len(taken) != n {
		t.Errorf("taken: got %d messages, want %d", len(taken), n)
	}
}

func testTakenComesBack(t *testing.T, p Place) {
	s := p.Open(t, Options{})
	park(t, s, deferred("a", time.Now().Add(-time.Minute)))
	wantIDs(t, "taken", take(t, s, 1), "a")
	must(t, s.Close())
	s = p.Open(t, Options{})
	wantIDs(t, "after the end of the one who took it", take(t, s, 1), "a")
}

func testPutBack(t *testing.T, p Place) {
	s := p.Open(t, Options{})
	want := park(t, s, deferred("a", time.Now().Add(-time.Minute)))
	m := take(t, s, 1)[0]
	want.Due = time.Now().Add(-time.Second).UTC().Truncate(time.Millisecond)
	must(t, s.PutBack(t.Context(), m.ID, want.Due))
	same(t, "put back", get(t, s, m.ID), want)
	wantIDs(t, "taken again", take(t, s, 1), "a")
	must(t, s.Remove(t.Context(), m.ID))
	wantNotFound(t, "Remove again", s.Remove(t.Context(), m.ID))
	must(t, s.PutBack(t.Context(), m.ID, time.Now())) // gone: nothing to put back
	wantIDs(t, "removed", take(t, s, 1))
}

func testReplay(t *testing.T, p Place) {
	s := p.Open(t, Options{})
	m := park(t, s, parked("a", "body"))
	must(t, s.Replay(t.Context(), m.ID))
	got := take(t, s, 10)
	wantIDs(t, "replayed", got, "a")
	if got[0].Attempts != 0 || got[0].Slow != 0 || got[0].Replays != 1 {
		t.Errorf("got %d attempts, %d slow, %d replays, want 0, 0, 1", got[0].Attempts, got[0].Slow, got[0].Replays)
	}
	must(t, s.Replay(t.Context(), m.ID)) // being processed: left to finish
	wantIDs(t, "while it is processed", take(t, s, 10))
	got[0].State, got[0].Attempts = inbox.StateParked, 10
	park(t, s, got[0])
	if again := get(t, s, m.ID); again.Replays != 1 || again.State != inbox.StateParked {
		t.Errorf("parked again: got %d replays, %s, want 1, parked", again.Replays, again.State)
	}
	must(t, s.Replay(t.Context(), m.ID)) // a second replay works like the first
	wantIDs(t, "replayed again", take(t, s, 10), "a")
	wantNotFound(t, "Replay", s.Replay(t.Context(), "nowhere"))

	soon := park(t, s, deferred("b", time.Now().Add(time.Hour)))
	must(t, s.Replay(t.Context(), soon.ID))
	wantIDs(t, "a deferred one", take(t, s, 10), "b")
}

func testDiscard(t *testing.T, p Place) {
	s := p.Open(t, Options{})
	m := park(t, s, parked("a", "body"))
	must(t, s.Discard(t.Context(), m.ID))
	_, err := s.GetParked(t.Context(), m.ID)
	wantNotFound(t, "GetParked", err)
	wantNotFound(t, "Discard", s.Discard(t.Context(), m.ID))
}
