package postgres

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/inboxd/inboxd/internal/inbox"
	"github.com/inboxd/inboxd/internal/testenv"
)

// leasesOf returns the owner of each lease in the table.
func leasesOf(t testing.TB, s *Store) map[string]string {
	t.Helper()
	owners := make(map[string]string)
	must(t, s.try(t.Context(), s.desk, s.opts.CallTime, func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, "select message_id, owner::text from inboxd.lease")
		if err != nil {
			return err
		}
		var id, owner string
		_, err = pgx.ForEachRow(rows, []any{&id, &owner}, func() error { owners[id] = owner; return nil })
		return err
	}))
	return owners
}

// meet waits until s, unless it is closed, has seen that it is not alone.
func meet(t testing.TB, s *Store) {
	t.Helper()
	eventually(t, "a store has seen another", 10*time.Second, func() bool {
		return s.Healthy(t.Context()) != nil || !s.hand.isAlone()
	})
}

// Leases are half of what a message costs the server; a daemon without replicas
// needs none, and one that gets a replica needs them for all that it has in hand.
func TestADaemonAloneTakesNoLeasesUntilAnotherComes(t *testing.T) {
	t.Parallel()
	url := testenv.DatabaseURL(t)
	a := open(t, Options{URL: url})
	for _, id := range []string{"in-hand", "recorded", "given-up"} {
		wantStatus(t, a, key(id), inbox.ClaimNew)
	}
	must(t, a.Record(t.Context(), inbox.Claim{Key: key("recorded")}))
	a.Release(inbox.Claim{Key: key("given-up")})
	if got := leasesOf(t, a); len(got) != 0 {
		t.Errorf("leases of a daemon alone: got %v, want none", got)
	}

	b := open(t, Options{URL: url})
	wantStatus(t, b, key("in-hand"), inbox.ClaimHeld)
	wantStatus(t, b, key("given-up"), inbox.ClaimHeld) // b cannot know yet
	wantStatus(t, b, key("recorded"), inbox.ClaimRecorded)
	meet(t, a)
	if got := leasesOf(t, a); got["in-hand"] != a.owner || got["recorded"] == a.owner {
		t.Errorf("leases with another daemon there: got %v, want %s to have in-hand and not recorded", got, a.owner)
	}
	wantStatus(t, b, key("in-hand"), inbox.ClaimHeld)
	wantStatus(t, b, key("given-up"), inbox.ClaimNew)
	wantStatus(t, a, key("given-up"), inbox.ClaimHeld)
	wantStatus(t, a, key("in-hand"), inbox.ClaimNew) // its own
	must(t, a.Record(t.Context(), inbox.Claim{Key: key("in-hand")}))
	wantStatus(t, b, key("in-hand"), inbox.ClaimRecorded)

	// Alone again, b needs none, and those that it had do not stay behind.
	must(t, a.Close())
	wantStatus(t, b, key("late"), inbox.ClaimNew)
	eventually(t, "the other is alone", 10*time.Second, func() bool {
		must(t, b.Healthy(t.Context()))
		return b.hand.isAlone()
	})
	wantStatus(t, b, key("no-lease"), inbox.ClaimNew)
	for _, id := range []string{"late", "given-up"} {
		must(t, b.Record(t.Context(), inbox.Claim{Key: key(id)}))
	}
	eventually(t, "no lease is left", 10*time.Second, func() bool {
		b.releaseLeftovers()
		return len(leasesOf(t, b)) == 0
	})
}

// A claim finds the other daemon by itself; it need not wait for a heartbeat.
func TestADaemonAloneNoticesAnotherAtItsNextClaim(t *testing.T) {
	t.Parallel()
	url := testenv.DatabaseURL(t)
	a := open(t, Options{URL: url})
	wantStatus(t, a, key("before"), inbox.ClaimNew)
	b := open(t, Options{URL: url})
	wantStatus(t, a, key("after"), inbox.ClaimNew)
	if got := leasesOf(t, a); got["before"] != a.owner || got["after"] != a.owner {
		t.Errorf("leases: got %v, want both keys to be of %s", got, a.owner)
	}
	wantStatus(t, b, key("free"), inbox.ClaimNew)
}

// Nobody knows what a daemon had in hand that died alone: everything waits, once,
// until its row has run out.
func TestADaemonThatDiedAloneIsWaitedFor(t *testing.T) {
	t.Parallel()
	url := testenv.DatabaseURL(t)
	const lease = time.Second
	dead := open(t, Options{URL: url, LeaseTime: lease}) // no Run: as good as dead
	other := open(t, Options{URL: url, LeaseTime: time.Hour})
	_, err := dead.beat(t.Context())
	must(t, err)
	start := time.Now()
	wantStatus(t, other, key("k"), inbox.ClaimHeld)
	eventually(t, "the key is free", 10*lease, func() bool {
		c, err := other.Claim(t.Context(), key("k"), inbox.Fingerprint{})
		must(t, err)
		return c.Status == inbox.ClaimNew
	})
	if took := time.Since(start); took < lease*8/10 {
		t.Errorf("free after %v, want the lease time, %v", took, lease)
	}
	wantStatus(t, dead, key("k"), inbox.ClaimHeld) // frozen and awake again
}

// A daemon that was frozen while alone may not take away what others have claimed
// since, for what it had in hand itself.
func TestADaemonAwakeAgainTakesNothingBack(t *testing.T) {
	t.Parallel()
	url := testenv.DatabaseURL(t)
	frozen := open(t, Options{URL: url})
	wantStatus(t, frozen, key("k"), inbox.ClaimNew)
	wantStatus(t, frozen, key("l"), inbox.ClaimNew)
	admin(t, url, "update inboxd.owner set expires_at = now() - interval '1 second' where id = $1::text::uuid", frozen.owner)
	other := open(t, Options{URL: url})
	wantStatus(t, other, key("k"), inbox.ClaimNew)
	meet(t, frozen)
	meet(t, other)
	if got := leasesOf(t, other); got["k"] != other.owner {
		t.Errorf("leases: got %v, want k to be of %s still", got, other.owner)
	}
	wantStatus(t, frozen, key("k"), inbox.ClaimHeld)
	wantStatus(t, other, key("l"), inbox.ClaimHeld)
}

// Nor where the other was there before and has leases: a heartbeat that comes late
// does not make the claims of the one that was frozen good again.
func TestALateHeartbeatTakesNothingBack(t *testing.T) {
	t.Parallel()
	url := testenv.DatabaseURL(t)
	frozen := open(t, Options{URL: url})
	wantStatus(t, frozen, key("k"), inbox.ClaimNew)
	other := open(t, Options{URL: url, Leases: LeasesAlways})
	wantStatus(t, other, key("k"), inbox.ClaimHeld)
	admin(t, url, "update inboxd.owner set expires_at = now() - interval '1 second' where id = $1::text::uuid", frozen.owner)
	wantStatus(t, other, key("k"), inbox.ClaimNew)
	meet(t, frozen)
	if got := leasesOf(t, other); got["k"] != other.owner {
		t.Errorf("leases: got %v, want k to be of %s still", got, other.owner)
	}
	wantStatus(t, frozen, key("k"), inbox.ClaimHeld)
	wantStatus(t, frozen, key("l"), inbox.ClaimNew)
	wantStatus(t, other, key("l"), inbox.ClaimHeld)
}

// Another daemon may go on only when leases stand for all that the first one has in
// hand, however often writing them failed before.
func TestNobodyGoesOnBeforeTheLeasesAreWritten(t *testing.T) {
	t.Parallel()
	url := testenv.DatabaseURL(t)
	a := open(t, Options{URL: url})
	for _, id := range []string{"k", "recorded"} {
		wantStatus(t, a, key(id), inbox.ClaimNew)
	}
	b := open(t, Options{URL: url})
	err := a.try(t.Context(), a.lookups, time.Second, func(ctx context.Context, conn *pgx.Conn) error {
		_ = conn.Close(ctx)
		return a.share(ctx, conn)
	})
	if err == nil {
		t.Fatal("writing leases on a closed connection: got no error")
	}
	must(t, a.Record(t.Context(), inbox.Claim{Key: key("recorded")}))
	meet(t, a)
	if got := leasesOf(t, a); got["k"] != a.owner {
		t.Errorf("leases: got %v, want k to be of %s", got, a.owner)
	}
	wantStatus(t, b, key("k"), inbox.ClaimHeld)
	wantStatus(t, b, key("recorded"), inbox.ClaimRecorded)
}

// A daemon that has become alone without hearing of it claims nothing without a
// lease: it would not know what to write leases for.
func TestBeingAloneUnawaresIsNoReasonToClaim(t *testing.T) {
	t.Parallel()
	url := testenv.DatabaseURL(t)
	a := open(t, Options{URL: url})
	a.hand.setAlone(false) // as after a call whose answer was lost
	a.waits = true
	wantStatus(t, a, key("k"), inbox.ClaimNew)
	b := open(t, Options{URL: url})
	meet(t, a)
	eventually(t, "the other has seen that", 10*time.Second, func() bool {
		c, err := b.Claim(t.Context(), key("other"), inbox.Fingerprint{})
		must(t, err)
		return c.Status == inbox.ClaimNew
	})
	wantStatus(t, b, key("k"), inbox.ClaimHeld)
}

// With leases: always nobody waits for more than what a dead daemon had in hand.
func TestLeasesAlwaysAreTakenByADaemonAloneToo(t *testing.T) {
	t.Parallel()
	url := testenv.DatabaseURL(t)
	a := open(t, Options{URL: url, Leases: LeasesAlways})
	must(t, a.Healthy(t.Context()))
	wantStatus(t, a, key("k"), inbox.ClaimNew)
	if got := leasesOf(t, a); got["k"] != a.owner {
		t.Errorf("leases: got %v, want k to be of %s", got, a.owner)
	}
	b := open(t, Options{URL: url, Leases: LeasesAlways})
	wantStatus(t, b, key("k"), inbox.ClaimHeld)
	wantStatus(t, b, key("l"), inbox.ClaimNew)
}

// Whether daemons come, go, or are alone for a while: a key is in the hands of one
// at a time, and of none once it is recorded.
func TestOneDaemonHasAKeyWhoeverComesAndGoes(t *testing.T) {
	t.Parallel()
	url := testenv.DatabaseURL(t)
	const daemons, lives, workers, keys = 4, 5, 8, 400
	var mu sync.Mutex
	holder := make(map[inbox.Key]int) // of what is not recorded; -1: recorded
	aloneOnce := false
	try := func(s *Store, daemon int, k inbox.Key) {
		c, err := s.Claim(context.Background(), k, inbox.Fingerprint{})
		if err != nil {
			t.Error(err)
			return
		}
		mu.Lock()
		aloneOnce = aloneOnce || s.hand.isAlone()
		before := holder[k]
		if c.Status == inbox.ClaimNew && before == 0 {
			holder[k] = daemon
		}
		mu.Unlock()
		switch {
		case c.Status == inbox.ClaimRecorded && before != -1:
			t.Errorf("%v: recorded, but nobody has recorded it", k)
		case c.Status == inbox.ClaimNew && before != 0:
			t.Errorf("%v is new to daemon %d, but %d has it (-1: it is recorded)", k, daemon, before)
		}
		if c.Status != inbox.ClaimNew || before != 0 {
			return
		}
		// Another may have it as soon as this is done, so the books come first.
		record := rand.N(2) == 0
		mu.Lock()
		holder[k] = 0
		if record {
			holder[k] = -1
		}
		mu.Unlock()
		if !record {
			s.Release(c)
		} else if err := s.Record(context.Background(), c); err != nil {
			t.Error(err)
		}
	}
	work := func(s *Store, daemon int, flights *sync.Map) {
		for range 60 {
			k := key(fmt.Sprint("m", rand.N(keys)))
			if _, busy := flights.LoadOrStore(k, nil); busy {
				continue // a daemon has one flight of a message at a time
			}
			try(s, daemon, k)
			flights.Delete(k)
		}
		must(t, s.Healthy(context.Background())) // as the heartbeat of Run would
	}
	var all sync.WaitGroup
	for daemon := 1; daemon <= daemons; daemon++ {
		all.Go(func() {
			for range lives * daemon { // in the end one is left
				s := open(t, Options{URL: url})
				var wg sync.WaitGroup
				var flights sync.Map
				for range workers {
					wg.Go(func() { work(s, daemon, &flights) })
				}
				wg.Wait()
				must(t, s.Close())
			}
		})
	}
	all.Wait()
	if !aloneOnce {
		t.Error("no daemon was ever alone: nothing of this was tested")
	}
}
