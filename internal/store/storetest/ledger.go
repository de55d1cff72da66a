package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
	"github.com/inboxd/inboxd/internal/store"
)

func testClaim(t *testing.T, p Place) {
	s := p.Open(t, Options{})
	fp := fingerprint(1)
	c := wantStatus(t, s, key("a"), fp, inbox.ClaimNew)
	wantStatus(t, s, key("a"), fp, inbox.ClaimNew) // ours: renewed, not refused
	s.Release(c)
	c = wantStatus(t, s, key("a"), fp, inbox.ClaimNew)
	record(t, s, c)
	c = wantStatus(t, s, key("a"), fp, inbox.ClaimRecorded)
	if err := near(c.RecordedAt, time.Now()); err != nil {
		t.Errorf("RecordedAt: %v", err)
	}
	if c.Age < 0 || c.Age > time.Minute {
		t.Errorf("Age: got %v, want about 0", c.Age)
	}
	wantStatus(t, s, key("b"), fp, inbox.ClaimNew)

	if _, err := s.Claim(t.Context(), key(""), fp); err == nil {
		t.Error("Claim without an ID: got no error")
	}
}

func testConsumers(t *testing.T, p Place) {
	s := p.Open(t, Options{})
	for _, consumer := range []string{Consumer, "mail"} {
		k := inbox.Key{Consumer: consumer, ID: "a"}
		record(t, s, wantStatus(t, s, k, inbox.Fingerprint{}, inbox.ClaimNew))
		wantStatus(t, s, k, inbox.Fingerprint{}, inbox.ClaimRecorded)
	}
}

func testMismatch(t *testing.T, p Place) {
	s := p.Open(t, Options{})
	for _, c := range []struct {
		name             string
		recorded, asking inbox.Fingerprint
		want             inbox.ClaimStatus
	}{
		{"same", fingerprint(1), fingerprint(1), inbox.ClaimRecorded},
		{"other", fingerprint(1), fingerprint(2), inbox.ClaimMismatch},
		{"none-asking", fingerprint(1), inbox.Fingerprint{}, inbox.ClaimRecorded},
		{"none-recorded", inbox.Fingerprint{}, fingerprint(1), inbox.ClaimRecorded},
		{"high-bits", fingerprint(0xff), fingerprint(0xff), inbox.ClaimRecorded},
	} {
		record(t, s, claim(t, s, key(c.name), c.recorded))
		got := wantStatus(t, s, key(c.name), c.asking, c.want)
		if got.RecordedAt.IsZero() {
			t.Errorf("%s: RecordedAt is zero", c.name)
		}
	}
	// A mismatch is no claim of ours, and does not change the record.
	wantStatus(t, s, key("other"), fingerprint(1), inbox.ClaimRecorded)
}

// Canonical IDs are visible ASCII; those that are easily taken for one another
// must stay apart.
func testIDs(t *testing.T, p Place) {
	s := p.Open(t, Options{})
	long := make([]byte, 255)
	for i := range long {
		long[i] = 'x'
	}
	ids := []string{
		"a", "A", "%20a", "a%20", "a%00", "%C3%A9", "e%CC%81", `"`, `\`, `\"`, "'", "''", "$1", "?1", "{a,b}", "a,b", "NULL", "null",
		"0", "00", "1", "1.0", "01", "-1", "true", "[]", "sha256:00", string(long), string(long[:254]) + "y",
		"550e8400-e29b-41d4-a716-446655440000", "550E8400-E29B-41D4-A716-446655440000",
	}
	for i, id := range ids {
		record(t, s, wantStatus(t, s, key(id), fingerprint(byte(i)), inbox.ClaimNew))
	}
	for i, id := range ids {
		wantStatus(t, s, key(id), fingerprint(byte(i)), inbox.ClaimRecorded)
	}
}

func testRecordAgain(t *testing.T, p Place) {
	s := p.Open(t, Options{})
	c := claim(t, s, key("a"), fingerprint(1))
	record(t, s, c)
	first, err := s.Lookup(t.Context(), key("a"))
	must(t, err)
	record(t, s, c)
	c.Fingerprint = fingerprint(2)
	record(t, s, c)
	again, err := s.Lookup(t.Context(), key("a"))
	must(t, err)
	if again != first {
		t.Errorf("recorded again: got %+v, want the first record %+v", again, first)
	}
}

func testReopen(t *testing.T, p Place) {
	s := p.Open(t, Options{})
	record(t, s, claim(t, s, key("a"), fingerprint(1)))
	must(t, s.Close())
	if _, err := s.Claim(t.Context(), key("a"), fingerprint(1)); err == nil {
		t.Error("Claim after Close: got no error")
	}
	s = p.Open(t, Options{})
	wantStatus(t, s, key("a"), fingerprint(1), inbox.ClaimRecorded)
	wantStatus(t, s, key("a"), fingerprint(2), inbox.ClaimMismatch)
}

func testConcurrent(t *testing.T, p Place) {
	s := p.Open(t, Options{})
	const n = 2000
	each := func(what string, want inbox.ClaimStatus, then func(inbox.Claim) error) {
		t.Helper()
		var wg sync.WaitGroup
		var wrong atomic.Int32
		for i := range n {
			wg.Go(func() {
				k := inbox.Key{Consumer: fmt.Sprintf("c%d", i%3), ID: inbox.MessageID(fmt.Sprintf("%s-%d", "m", i))}
				c, err := s.Claim(t.Context(), k, fingerprint(byte(i)))
				if err == nil && c.Key != k {
					err = errors.New("answer of another key")
				}
				if err == nil && c.Status != want {
					err = fmt.Errorf("got %s, want %s", status(c.Status), status(want))
				}
				if err == nil {
					err = then(c)
				}
				if err != nil && wrong.Add(1) < 5 {
					t.Errorf("%s, %v: %v", what, k, err)
				}
			})
		}
		wg.Wait()
		if w := wrong.Load(); w > 0 {
			t.Fatalf("%s: %d of %d wrong", what, w, n)
		}
	}
	each("at first", inbox.ClaimNew, func(c inbox.Claim) error { return s.Record(t.Context(), c) })
	each("afterwards", inbox.ClaimRecorded, func(inbox.Claim) error { return nil })
}

func testSameKey(t *testing.T, p Place) {
	s := p.Open(t, Options{})
	var wg sync.WaitGroup
	for range 1000 {
		wg.Go(func() {
			c, err := s.Claim(t.Context(), key("a"), fingerprint(1))
			if err != nil || c.Status != inbox.ClaimNew && c.Status != inbox.ClaimRecorded {
				t.Errorf("got %s, %v, want new or recorded", status(c.Status), err)
				return
			}
			if err := s.Record(t.Context(), c); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	wantStatus(t, s, key("a"), fingerprint(1), inbox.ClaimRecorded)
}

func testContext(t *testing.T, p Place) {
	s := p.Open(t, Options{})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Claim(ended, key("a"), fingerprint(1)); !errors.Is(err, context.Canceled) {
		t.Errorf("Claim: got %v, want %v", err, context.Canceled)
	}
	// A storm of waits that end at any moment: what was answered without an error
	// is recorded, and the store goes on.
	var wg sync.WaitGroup
	var mu sync.Mutex
	var recorded []inbox.Key
	for i := range 200 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*50*time.Microsecond)
			defer cancel()
			k := key(fmt.Sprintf("s%d", i))
			if s.Record(ctx, inbox.Claim{Key: k, Fingerprint: fingerprint(1)}) == nil {
				mu.Lock()
				defer mu.Unlock()
				recorded = append(recorded, k)
			}
		})
	}
	wg.Wait()
	for _, k := range recorded {
		wantStatus(t, s, k, fingerprint(1), inbox.ClaimRecorded)
	}
	record(t, s, claim(t, s, key("after"), fingerprint(1)))
}

func testClaimAll(t *testing.T, p Place) {
	s := p.Open(t, Options{})
	for _, id := range []string{"recorded", "other-body"} {
		record(t, s, claim(t, s, key(id), fingerprint(1)))
	}
	fps := map[string]byte{"other-body": 2}
	want := map[string]inbox.ClaimStatus{"recorded": inbox.ClaimRecorded, "other-body": inbox.ClaimMismatch}
	var claims []*inbox.Claiming
	add := func(k inbox.Key, fp byte) {
		claims = append(claims, &inbox.Claiming{Claim: inbox.Claim{Key: k, Fingerprint: fingerprint(fp), Status: inbox.ClaimHeld}})
	}
	for _, id := range []string{"z", "recorded", "new", "other-body", "new", "a"} {
		add(key(id), max(1, fps[id]))
	}
	add(key(""), 1) // has no place in the ledger, and does no harm to the others
	add(inbox.Key{Consumer: "another", ID: "recorded"}, 1)
	for range 2000 { // more than a statement may carry
		add(key(fmt.Sprintf("m%d", len(claims))), 1)
	}
	s.ClaimAll(claims)
	for _, c := range claims {
		k := c.Key
		switch {
		case k.ID == "":
			if c.Err == nil {
				t.Error("a claim without an ID: got no error")
			}
		case c.Err != nil:
			t.Errorf("%v: %v", k, c.Err)
		case k.Consumer != Consumer && c.Status != inbox.ClaimNew, k.Consumer == Consumer && c.Status != want[string(k.ID)]:
			t.Errorf("%v: got %s, want %s", k, status(c.Status), status(want[string(k.ID)]))
		case c.Fingerprint != fingerprint(max(1, fps[string(k.ID)])):
			t.Errorf("%v: the answer is of another delivery", k)
		}
	}
	record(t, s, claims[0].Claim)
	wantStatus(t, s, key("z"), fingerprint(1), inbox.ClaimRecorded)
	s.ClaimAll(nil)
}

func testRetention(t *testing.T, p Place) {
	const retention = 10 * time.Hour
	s := p.Open(t, Options{Retention: retention})
	for _, id := range []string{"old", "young", "new"} {
		record(t, s, claim(t, s, key(id), fingerprint(1)))
	}
	old := []inbox.Key{key("old")}
	var wg sync.WaitGroup
	for i := range 2400 {
		k := key(fmt.Sprintf("m%d", i))
		if i%6 != 0 {
			old = append(old, k)
		}
		wg.Go(func() {
			if err := s.Record(t.Context(), inbox.Claim{Key: k}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	p.Age(t, retention*11/10, old...)
	p.Age(t, retention*9/10, key("young"))
	run(t, s)
	gone := func(k inbox.Key) bool {
		_, err := s.Lookup(t.Context(), k)
		return errors.Is(err, inbox.ErrNotFound)
	}
	for _, k := range old {
		eventually(t, "records beyond the retention are deleted", func() bool { return gone(k) })
	}
	for _, id := range []string{"young", "new", "m0", "m1200", "m2394"} {
		if _, err := s.Lookup(t.Context(), key(id)); err != nil {
			t.Errorf("Lookup(%q): got %v, want the record", id, err)
		}
	}
	wantStatus(t, s, key("old"), fingerprint(1), inbox.ClaimNew)
	wantStatus(t, s, key("young"), fingerprint(1), inbox.ClaimRecorded)
}

// run does the upkeep of s until the test ends.
func run(t testing.TB, s store.Store) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func testLeases(t *testing.T, p Place) {
	if !p.Replicas {
		t.Skip("this store serves one daemon")
	}
	a, b := p.Open(t, Options{}), p.Open(t, Options{})
	fp := fingerprint(1)

	held := wantStatus(t, a, key("k"), fp, inbox.ClaimNew)
	wantStatus(t, b, key("k"), fp, inbox.ClaimHeld)
	wantStatus(t, a, key("k"), fp, inbox.ClaimNew)
	a.Release(held)
	eventually(t, "a released key is free", func() bool { return claim(t, b, key("k"), fp).Status == inbox.ClaimNew })
	wantStatus(t, a, key("k"), fp, inbox.ClaimHeld)
	record(t, b, inbox.Claim{Key: key("k"), Fingerprint: fp})
	wantStatus(t, a, key("k"), fp, inbox.ClaimRecorded)
	wantStatus(t, b, key("k"), fp, inbox.ClaimRecorded)

	// Whoever ends gives everything up.
	wantStatus(t, a, key("l"), fp, inbox.ClaimNew)
	must(t, a.Close())
	wantStatus(t, b, key("l"), fp, inbox.ClaimNew)

	// Many at once: each key is new to exactly one.
	stores := []store.Store{b, p.Open(t, Options{}), p.Open(t, Options{})}
	const keys = 300
	var fresh [keys]atomic.Int32
	var wg sync.WaitGroup
	for _, s := range stores {
		for i := range keys {
			wg.Go(func() {
				c, err := s.Claim(t.Context(), key(fmt.Sprintf("m%d", i)), fp)
				if err != nil {
					t.Errorf("m%d: %v", i, err)
				} else if c.Status == inbox.ClaimNew {
					fresh[i].Add(1)
				}
			})
		}
	}
	wg.Wait()
	for i := range fresh {
		if n := fresh[i].Load(); n != 1 {
			t.Errorf("m%d: new to %d stores, want 1", i, n)
		}
	}
}

func testOpenAtOnce(t *testing.T, p Place) {
	if !p.Replicas {
		t.Skip("this store serves one daemon")
	}
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() {
			s := p.Open(t, Options{})
			k := key(fmt.Sprintf("k%d", i))
			if err := s.Record(t.Context(), inbox.Claim{Key: k}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}
