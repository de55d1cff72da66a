package inbox

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func far() time.Time { return time.Now().Add(time.Hour) }

// Claims go in groups while enough claimed messages wait, and at once where none
// do.
func TestClaimsGoInGroupsBehindAStock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := NewWindow(4)
		claimed := 0
		for range 100 {
			go func() {
				if err := w.reserve(t.Context(), far(), false); err != nil {
					t.Error(err)
				}
				claimed++
				if err := w.enter(t.Context(), 1, far()); err != nil {
					t.Error(err)
				}
				w.unclaim()
			}()
			synctest.Wait()
		}
		// Four are in the window, four wait for it, the others have not begun.
		if claimed != 8 {
			t.Errorf("got %d claims, want 8: the places and as many in stock", claimed)
		}
		if err := w.reserve(t.Context(), far(), true); err != nil {
			t.Errorf("an urgent claim: got %v, want it to go at once", err)
		}
		w.unclaim()
		before := claimed
		w.leave(1) // one of the stock enters
		synctest.Wait()
		if got := claimed - before; got != w.group {
			t.Errorf("got %d claims let go together, want %d", got, w.group)
		}
		for range 99 {
			w.leave(1)
			synctest.Wait()
		}
		if claimed != 100 || w.stock != 0 || w.taken != 0 {
			t.Errorf("got %d claims, stock %d, %d places taken; want 100, 0, 0", claimed, w.stock, w.taken)
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
				if w.reserve(ctx, far(), n%7 == 0) == nil {
					places := 1 + 2*(i%2)
					err := w.enter(ctx, places, far())
					w.unclaim()
					if err == nil {
						w.leave(places)
					}
				}
				cancel()
			}
		})
	}
	wg.Wait()
	if w.taken != 0 || w.stock != 0 || len(w.entering.line)+len(w.claiming.line) != 0 {
		t.Errorf("got %d places taken, stock %d, %d in line; want none", w.taken, w.stock, len(w.entering.line)+len(w.claiming.line))
	}
}

func BenchmarkWindow(b *testing.B) {
	w := NewWindow(64)
	b.ReportAllocs()
	b.SetParallelism(512)
	b.RunParallel(func(pb *testing.PB) {
		ctx, until := context.Background(), far()
		for pb.Next() {
			_ = w.reserve(ctx, until, false)
			_ = w.enter(ctx, 1, until)
			w.unclaim()
			w.leave(1)
		}
	})
}
