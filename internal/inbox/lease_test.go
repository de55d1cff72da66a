package inbox

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// leases is a ledger whose leases live until they are released.
type leases struct {
	*memory
	mu   sync.Mutex
	held map[Key]bool
}

func (l *leases) Claim(ctx context.Context, k Key, fp Fingerprint) (Claim, error) {
	c, err := l.memory.Claim(ctx, k, fp)
	if err == nil && c.Status == ClaimNew {
		l.mu.Lock()
		l.held[k] = true
		l.mu.Unlock()
	}
	return c, err
}

func (l *leases) ClaimAll(claims []*Claiming) {
	for _, c := range claims {
		c.Claim, c.Err = l.Claim(context.Background(), c.Key, c.Fingerprint)
	}
}

func (l *leases) Record(ctx context.Context, c Claim) error {
	err := l.memory.Record(ctx, c)
	if err == nil {
		l.Release(c)
	}
	return err
}

func (l *leases) Release(c Claim) { l.mu.Lock(); delete(l.held, c.Key); l.mu.Unlock() }
func (l *leases) count() int      { l.mu.Lock(); defer l.mu.Unlock(); return len(l.held) }

// Whatever a delivery comes to, its lease does not stay: another replica could
// never have the message.
func TestNoLeaseOutlivesItsDeliveryForLong(t *testing.T) {
	cut := Answer{Verdict: NoAnswer, Err: errors.New("time-out")}
	for name, list := range map[string][]Answer{
		"processed":           {ok200},
		"parked":              {cut},
		"refused":             {{Verdict: Refused, Err: errors.New("422")}},
		"lost after time-out": {cut, ok200},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := &leases{memory: newMemory(), held: map[Key]bool{}}
			ctx, lose := context.WithCancel(t.Context())
			defer lose()
			f := &answers{list: list}
			if name == "lost after time-out" {
				f.before = lose
			}
			p := newProcessor(l.memory, f)
			p.Ledger = l
			got := p.Process(ctx, delivery("a", "{}"))
			if last := list[len(list)-1]; got.Outcome == Returned && last.Verdict == Done && l.count() != 1 {
				t.Errorf("%s: got %d leases at the end of the session, want 1: the handler may be at work", name, l.count())
			}
			time.Sleep(leaseAfterUnknown + time.Second)
			if l.count() != 0 {
				t.Errorf("%s: got %d leases, want 0", name, l.count())
			}
		})
	}
}

func TestALeaseIsNotReleasedUnderTheNextDelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &leases{memory: newMemory(), held: map[Key]bool{}}
		ctx, lose := context.WithCancel(t.Context())
		f := &answers{list: []Answer{{Verdict: NoAnswer, Err: errors.New("time-out")}, ok200}, before: lose, took: 10 * time.Second}
		p := newProcessor(l.memory, f)
		p.Ledger = l
		p.Process(ctx, delivery("a", "{}"))
		time.Sleep(leaseAfterUnknown - 5*time.Second)
		go p.Process(t.Context(), delivery("a", "{}"))
		time.Sleep(6 * time.Second)
		if l.count() != 1 {
			t.Errorf("got %d leases while the next request is in flight, want 1", l.count())
		}
		time.Sleep(time.Minute)
	})
}

func TestWaitingForAnotherDeliveryEndsWithTheHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		f := &answers{list: []Answer{err500}, took: time.Hour}
		p, start := newProcessor(m, f), time.Now()
		go p.Process(t.Context(), delivery("a", "{}"))
		time.Sleep(time.Second)
		got := p.Process(t.Context(), delivery("a", "{}"))
		if held := time.Since(start); got.Outcome != Returned || held > p.Retry.Hold+2*time.Second {
			t.Errorf("got %v after %v, want it returned within %v", got.Outcome, held, p.Retry.Hold)
		}
		time.Sleep(24 * time.Hour)
	})
}

func TestParkingEndsWithTheHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		p, start := newProcessor(m, &answers{list: []Answer{{Verdict: Refused, Err: errors.New("422")}}}), time.Now()
		p.Parker = parkFails{}
		got := p.Process(t.Context(), delivery("a", "{}"))
		if held := time.Since(start); got.Outcome != Returned || held > p.Retry.Hold+keepWithin {
			t.Errorf("got %v after %v, want it returned within %v", got.Outcome, held, p.Retry.Hold)
		}
	})
}

type parkFails struct{}

func (parkFails) Park(context.Context, *ParkedMessage) error { return errors.New("no queue") }
