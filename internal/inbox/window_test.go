package inbox

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func far() time.Time { return time.Now().Add(time.Hour) }

// ledgerOf answers every claim with status and notes how many there were at a time.
func ledgerOf(status ClaimStatus, sizes *[]int) func([]*Claiming) {
	return func(claims []*Claiming) {
		*sizes = append(*sizes, len(claims))
		for _, c := range claims {
			c.Status = status
		}
	}
}

func sum(sizes []int) (n int) {
	for _, size := range sizes {
		n += size
	}
	return n
}

// Claims go in groups while enough claimed messages wait, and at once where none
// do.
func TestClaimsGoInGroupsBehindAStock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := NewWindow(4)
		var sizes []int
		entered := 0
		for range 100 {
			go func() {
				if err := w.admit(t.Context(), new(Claiming), far(), ledgerOf(ClaimNew, &sizes)); err != nil {
					t.Error(err)
				}
				entered++
			}()
			synctest.Wait()
		}
		// Four are in the window. Two wait for it one by one, then two together
		// make the stock full, and the others have not begun.
		if got := sum(sizes); entered != 4 || got != 8 {
			t.Errorf("got %d in the window after %d claims, want 4 after 8: the places and as many in stock", entered, got)
		}
		w.leave(1) // one of the stock enters
		synctest.Wait()
		if got := sizes[len(sizes)-1]; entered != 5 || got != w.group {
			t.Errorf("got %d in the window and %d claimed together, want 5 and %d", entered, got, w.group)
		}
		for range 99 {
			w.leave(1)
			synctest.Wait()
		}
		if got := sum(sizes); got != 100 || entered != 100 || w.stock != 0 || w.taken != 0 {
			t.Errorf("got %d claims, %d entered, stock %d, %d places taken; want 100, 100, 0, 0", got, entered, w.stock, w.taken)
		}
	})
}

// What is not new needs no place and waits for none.
func TestDuplicatesPassTheWindowBy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := NewWindow(1)
		if err := w.enter(t.Context(), 1, far()); err != nil {
			t.Fatal(err)
		}
		var sizes []int
		for _, status := range []ClaimStatus{ClaimRecorded, ClaimMismatch, ClaimHeld} {
			c := new(Claiming)
			if err := w.admit(t.Context(), c, far(), ledgerOf(status, &sizes)); err != nil || c.Status != status {
				t.Errorf("got status %d, %v, want %d", c.Status, err, status)
			}
		}
		c := new(Claiming)
		away := errors.New("away")
		err := w.admit(t.Context(), c, far(), func(claims []*Claiming) { claims[0].Err = away })
		if err != nil || !errors.Is(c.Err, away) {
			t.Errorf("with the store away: got %v, %v, want %v for the claim", err, c.Err, away)
		}
		if w.stock != 0 || w.taken != 1 {
			t.Errorf("got stock %d, %d places taken, want 0, 1", w.stock, w.taken)
		}
	})
}

// Wherever a message waits for its place when its session is lost, it waits no
// longer than the ledger does, and holds nobody up.
func TestWaitingToBeAdmittedEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := NewWindow(2)
		lost := errors.New("session lost")
		ctx, cancel := context.WithCancelCause(t.Context())
		var wg sync.WaitGroup
		admit := func(ctx context.Context, c *Claiming, until time.Time, took time.Duration, want error) {
			wg.Go(func() {
				err := w.admit(ctx, c, until, func(claims []*Claiming) {
					time.Sleep(took)
					for _, c := range claims {
						c.Status = ClaimNew
					}
				})
				if !errors.Is(err, want) {
					t.Errorf("got %v, want %v", err, want)
				}
			})
			synctest.Wait()
		}
		if err := w.enter(t.Context(), 2, far()); err != nil {
			t.Fatal(err)
		}
		claimed, asking := new(Claiming), new(Claiming)
		behind := &Claiming{Claim: Claim{Status: ClaimHeld}}
		admit(ctx, claimed, far(), 0, lost)          // waits for a place
		admit(ctx, asking, far(), time.Minute, lost) // leads a group, at the ledger
		admit(ctx, behind, far(), time.Minute, lost) // waits to be claimed
		admit(t.Context(), new(Claiming), time.Now().Add(time.Second), 0, context.DeadlineExceeded)
		admit(t.Context(), new(Claiming), far(), 0, nil)
		cancel(lost)
		time.Sleep(2 * time.Minute)
		w.leave(2)
		wg.Wait()
		if claimed.Status != ClaimNew || asking.Status != ClaimNew || behind.Status != ClaimHeld {
			t.Errorf("got claims %v, %v, %v, want the first two made, for the caller to give up", claimed, asking, behind)
		}
		if w.taken != 1 || w.stock != 0 || w.asking || len(w.entering.line)+len(w.claiming.line) != 0 {
			t.Errorf("got %d places taken, stock %d, asking %v; want 1, 0, false", w.taken, w.stock, w.asking)
		}
	})
}

func TestWindowIsEnteredInOrderAndByAllOrNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := NewWindow(3)
		var order []int
		enter := func(id, n int) {
			go func() {
				if err := w.enter(t.Context(), n, far()); err != nil {
					t.Error(err)
				}
				order = append(order, id)
			}()
			synctest.Wait()
		}
		enter(1, 1)
		enter(2, 3) // waits for the whole of it
		enter(3, 1) // has room, and waits behind it all the same
		if len(order) != 1 {
			t.Fatalf("got %v in the window, want [1]", order)
		}
		w.leave(1)
		synctest.Wait()
		if len(order) != 2 || order[1] != 2 {
			t.Fatalf("got %v in the window, want [1 2]", order)
		}
		w.leave(3)
		synctest.Wait()
		if len(order) != 3 {
			t.Errorf("got %v in the window, want 3 as well", order)
		}
		w.leave(1)
	})
}

func TestWaitingForTheWindowEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := NewWindow(1)
		if err := w.enter(t.Context(), 1, far()); err != nil {
			t.Fatal(err)
		}
		if err := w.enter(t.Context(), 1, time.Now().Add(time.Second)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("at the end of the hold: got %v, want %v", err, context.DeadlineExceeded)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		lost := errors.New("session lost")
		var wg sync.WaitGroup
		for n := range 4 { // whoever waits for more must not keep the others out when it gives up
			wg.Go(func() {
				if err := w.enter(ctx, 1+n%2, far()); !errors.Is(err, lost) {
					t.Errorf("at the end of ctx: got %v, want %v", err, lost)
				}
			})
		}
		synctest.Wait()
		cancel(lost)
		wg.Wait()
		w.leave(1)
		if err := w.enter(t.Context(), 1, time.Now()); err != nil || w.taken != 1 || len(w.entering.line) != 0 {
			t.Errorf("afterwards: got %v with %d places taken, want one free place", err, w.taken)
		}
	})
}

// A session that is lost and followed by the next at once leaves nobody waiting,
// whichever of the two is seen first.
func TestALostSessionLeavesNobodyInLine(t *testing.T) {
	t.Parallel()
	for range 200 {
		w := NewWindow(1)
		if err := w.enter(t.Context(), 1, far()); err != nil {
			t.Fatal(err)
		}
		var sizes []int
		lost := errors.New("session lost")
		first, cancel := context.WithCancelCause(t.Context())
		gone := make(chan error)
		go func() { gone <- w.admit(first, new(Claiming), far(), ledgerOf(ClaimNew, &sizes)) }()
		for !w.inLine(1) {
			runtime.Gosched()
		}
		w.mu.Lock()
		cancel(lost)
		second, stop := context.WithCancel(t.Context())
		w.share(second, new(waiter))
		w.mu.Unlock()
		if err := <-gone; !errors.Is(err, lost) {
			t.Fatalf("got %v, want %v", err, lost)
		}
		stop()
	}
}

func (w *Window) inLine(n int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.entering.line) == n
}

// Every grant is either used or given back, whatever happens at the same moment.
func TestNoPlaceIsLost(t *testing.T) {
	t.Parallel()
	w := NewWindow(3)
	var wg sync.WaitGroup
	for n := range 32 {
		wg.Go(func() {
			for i := range 300 {
				ctx, cancel := context.WithCancel(context.Background())
				if (n+i)%3 == 0 {
					go cancel()
				}
				places := 1
				var err error
				if n%7 == 0 {
					places = 1 + 2*(i%2)
					err = w.enter(ctx, places, far())
				} else {
					c := new(Claiming)
					status := ClaimStatus(i % 5 % 2) // new, or recorded
					err = w.admit(ctx, c, far(), func(claims []*Claiming) {
						for _, c := range claims {
							c.Status = status
						}
					})
					if c.Status != ClaimNew {
						places = 0
					}
				}
				if err == nil {
					w.leave(places)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	if w.taken != 0 || w.stock != 0 || w.asking || len(w.entering.line)+len(w.claiming.line) != 0 {
		t.Errorf("got %d places taken, stock %d, %d in line; want none", w.taken, w.stock, len(w.entering.line)+len(w.claiming.line))
	}
}

func BenchmarkWindow(b *testing.B) {
	w := NewWindow(64)
	b.ReportAllocs()
	b.SetParallelism(512)
	b.RunParallel(func(pb *testing.PB) {
		ctx, until := context.Background(), far()
		none := func([]*Claiming) {}
		c := new(Claiming)
		for pb.Next() {
			_ = w.admit(ctx, c, until, none)
			w.leave(1)
		}
	})
}
