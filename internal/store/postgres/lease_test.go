package postgres

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/inboxd/inboxd/internal/inbox"
	"github.com/inboxd/inboxd/internal/testenv"
)

// A daemon that was killed renews nothing: what it held is free after the lease
// time, and not before.
func TestLeasesOfADeadOwnerAreInherited(t *testing.T) {
	t.Parallel()
	url := testenv.DatabaseURL(t)
	const lease = time.Second
	dead := open(t, Options{URL: url, LeaseTime: lease}) // no Run: as good as dead
	alive := open(t, Options{URL: url, LeaseTime: lease})
	other := open(t, Options{URL: url, LeaseTime: time.Hour})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- alive.Run(ctx) }()
	defer func() { cancel(); <-ended }()

	meet(t, dead)
	start := time.Now()
	wantStatus(t, dead, key("dead"), inbox.ClaimNew)
	wantStatus(t, alive, key("alive"), inbox.ClaimNew)
	must(t, dead.Park(t.Context(), &inbox.ParkedMessage{Consumer: "c", State: inbox.StateDeferred, Due: time.Now().Add(-time.Second)}))
	if m, err := dead.TakeDue(t.Context(), "c", 1); err != nil || len(m) != 1 {
		t.Fatalf("TakeDue: got %d, %v, want 1", len(m), err)
	}
	eventually(t, "the dead owner's key is free", 10*lease, func() bool {
		c, err := other.Claim(t.Context(), key("dead"), inbox.Fingerprint{})
		must(t, err)
		return c.Status == inbox.ClaimNew
	})
	if took := time.Since(start); took < lease*8/10 {
		t.Errorf("free after %v, want the lease time, %v", took, lease)
	}
	if m, err := other.TakeDue(t.Context(), "c", 1); err != nil || len(m) != 1 {
		t.Errorf("message taken by the dead owner: got %d, %v, want it handed over", len(m), err)
	}
	eventually(t, "three lease times are over", 10*lease, func() bool { return time.Since(start) > 3*lease })
	wantStatus(t, other, key("alive"), inbox.ClaimHeld)
	wantStatus(t, dead, key("dead"), inbox.ClaimHeld) // frozen and awake again: it has lost it
}

// A release that the server did not hear of must not hold the key for ever: the
// lease would live as long as its owner.
func TestFailedReleaseIsRepeated(t *testing.T) {
	t.Parallel()
	p := private(t, "")
	proxy, err := testenv.NewProxy(p.Addr)
	must(t, err)
	t.Cleanup(func() { _ = proxy.Close() })
	a := open(t, Options{URL: strings.Replace(p.URL, p.Addr, proxy.Addr, 1), CallTime: 500 * time.Millisecond})
	b := open(t, Options{URL: p.URL})
	meet(t, a)
	wantStatus(t, a, key("k"), inbox.ClaimNew)
	proxy.Pause()
	a.Release(inbox.Claim{Key: key("k")})
	if _, err := a.Claim(t.Context(), key("l"), inbox.Fingerprint{}); err == nil {
		t.Fatal("Claim behind a black hole: got no error")
	}
	wantStatus(t, b, key("k"), inbox.ClaimHeld)
	proxy.Resume()
	eventually(t, "the release got through", 10*time.Second, func() bool {
		a.releaseLeftovers()
		for _, id := range []string{"k", "l"} {
			c, err := b.Claim(t.Context(), key(id), inbox.Fingerprint{})
			if err != nil || c.Status != inbox.ClaimNew {
				return false
			}
		}
		return true
	})
}

// Replicas that work on the same keys in different orders must not deadlock.
func TestOverlappingBatchesDoNotDeadlock(t *testing.T) {
	t.Parallel()
	p := private(t, "")
	var wg sync.WaitGroup
	for range 3 {
		s := open(t, Options{URL: p.URL})
		for range 64 {
			wg.Go(func() {
				order := rand.Perm(100)
				for _, i := range order {
					c, err := s.Claim(context.Background(), key(fmt.Sprint("m", i)), inbox.Fingerprint{})
					if err == nil {
						err = s.Record(context.Background(), c)
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	wg.Wait()
	if log := serverLog(t, p); strings.Contains(log, "deadlock detected") {
		t.Errorf("the server's log tells of a deadlock:\n%s", log)
	}
}

// What the server refuses for itself must not keep its neighbours from being
// recorded.
func TestPoisonedKeyFailsAlone(t *testing.T) {
	t.Parallel()
	s := open(t, Options{URL: testenv.DatabaseURL(t)})
	ids := []string{"a", "nul\x00", strings.Repeat("x", 300), "\xff", "z"}
	var records []*record
	var claims []claim
	for _, id := range ids {
		records = append(records, &record{key: key(id)})
		claims = append(claims, claim{Claiming: &inbox.Claiming{Claim: inbox.Claim{Key: key(id)}}})
	}
	must(t, s.flushRecords(records))
	must(t, s.flushClaims(claims))
	for _, r := range records {
		if good := len(r.key.ID) == 1 && r.key.ID < "\x80"; (r.err == nil) != good {
			t.Errorf("record %q: got %v", r.key.ID, r.err)
		}
	}
	for _, c := range claims {
		if good := len(c.Key.ID) == 1 && c.Key.ID < "\x80"; good && (c.Err != nil || c.Status != inbox.ClaimRecorded) {
			t.Errorf("claim %q: got %+v, %v, want recorded", c.Key.ID, c.Claim, c.Err)
		}
	}
}

// Leases must be gone when their work is: the table holds what is in flight.
func TestLeaseTableHoldsOnlyWhatIsInFlight(t *testing.T) {
	t.Parallel()
	s := open(t, Options{URL: testenv.DatabaseURL(t), Leases: LeasesAlways})
	var wg sync.WaitGroup
	for i := range 500 {
		wg.Go(func() {
			for range 2 { // the second time as a duplicate
				c, err := s.Claim(t.Context(), key(fmt.Sprint("m", i)), inbox.Fingerprint{})
				if err == nil && c.Status == inbox.ClaimNew {
					err = s.Record(t.Context(), c)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	wantStatus(t, s, key("in-flight"), inbox.ClaimNew)
	var left []string
	eventually(t, "one lease is left", 10*time.Second, func() bool {
		s.releaseLeftovers()
		must(t, s.try(t.Context(), s.desk, time.Second, func(ctx context.Context, conn *pgx.Conn) (err error) {
			rows, err := conn.Query(ctx, "select message_id from inboxd.lease")
			if err != nil {
				return err
			}
			left, err = pgx.CollectRows(rows, pgx.RowTo[string])
			return err
		}))
		return slices.Equal(left, []string{"in-flight"})
	})
}

// A daemon that was killed leaves its place behind; the next one that comes finds
// it, and the one after that does not.
func TestAnUncleanStopIsFoundOnce(t *testing.T) {
	t.Parallel()
	url := testenv.DatabaseURL(t)
	first := open(t, Options{URL: url})
	must(t, first.Close())
	second := open(t, Options{URL: url})
	if second.UncleanStop() {
		t.Error("after Close: got an unclean stop")
	}
	// As good as killed: its lease time is over.
	admin(t, url, "update inboxd.owner set expires_at = now() - interval '1 second'")
	// A person who looks at the store meanwhile does not use up the sign.
	if _, err := Check(t.Context(), Options{URL: url}); err != nil {
		t.Errorf("Check: %v", err)
	}
	third := open(t, Options{URL: url})
	if !third.UncleanStop() {
		t.Error("after an owner that ran out: got a clean stop")
	}
	if fourth := open(t, Options{URL: url}); fourth.UncleanStop() {
		t.Error("beside an owner that lives: got an unclean stop")
	}
	// A container that was started again: same host, other processes.
	admin(t, url, "update inboxd.owner set home = 'elsewhere'")
	if fifth := open(t, Options{URL: url}); !fifth.UncleanStop() {
		t.Error("after an owner of our host in another namespace: got a clean stop")
	}
}
