package batch

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

type item struct {
	n    int
	done bool
}

// recorder keeps the sizes of the batches; each flush takes a second.
type recorder struct {
	mu    sync.Mutex
	sizes []int
	order []int
	err   error
}

func (r *recorder) flush(items []*item) error {
	time.Sleep(time.Second)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sizes = append(r.sizes, len(items))
	for _, it := range items {
		it.done = true
		r.order = append(r.order, it.n)
	}
	return r.err
}

// Who brings several items waits once, and they go together.
func TestItemsOfOneCallGoInOneFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{err: errors.New("no")}
		b := New(4, 1, r.flush)
		var wg sync.WaitGroup
		for _, size := range []int{1, 2, 3, 6, 0} {
			items := make([]*item, size)
			for i := range items {
				items[i] = &item{n: size}
			}
			wg.Go(func() {
				err := b.DoAll(t.Context(), items)
				if size > 0 && !errors.Is(err, r.err) || size == 0 && err != nil {
					t.Errorf("DoAll of %d: got %v, want the flush's error", size, err)
				}
				for _, it := range items {
					if !it.done {
						t.Errorf("DoAll of %d: an item was not flushed", size)
					}
				}
			})
			synctest.Wait()
		}
		wg.Wait()
		b.Close()
		// Two would fit beside the first of the line, three do not; six are above
		// the limit and go all the same.
		if want := []int{1, 2, 3, 6}; !slices.Equal(r.sizes, want) {
			t.Errorf("batches: got %v, want %v", r.sizes, want)
		}
	})
}

func TestIdleBatcherFlushesAtOnceAndBusyOneCollects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{}
		b := New(1000, 1, r.flush)
		start := time.Now()
		var wg sync.WaitGroup
		for n := range 10 {
			wg.Go(func() {
				it := &item{n: n}
				if err := b.Do(t.Context(), it); err != nil || !it.done {
					t.Errorf("Do(%d): got done=%v, %v, want flushed", n, it.done, err)
				}
			})
			synctest.Wait()
		}
		wg.Wait()
		if want := []int{1, 9}; !slices.Equal(r.sizes, want) {
			t.Errorf("batches: got %v, want %v", r.sizes, want)
		}
		if took := time.Since(start); took != 2*time.Second {
			t.Errorf("time: got %v, want two flushes, 2s", took)
		}
		if !slices.IsSorted(r.order) {
			t.Errorf("order: got %v, want first come first served", r.order)
		}
	})
}

func TestBatchesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{}
		b := New(4, 1, r.flush)
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() { _ = b.Do(t.Context(), &item{}) })
			synctest.Wait()
		}
		wg.Wait()
		if want := []int{1, 4, 4, 1}; !slices.Equal(r.sizes, want) {
			t.Errorf("batches: got %v, want %v", r.sizes, want)
		}
	})
}

func TestContextBoundsOnlyTheWaitInLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{}
		b := New(10, 1, r.flush)
		ctx, cancel := context.WithCancel(t.Context())
		taken, waiting := &item{n: 1}, &item{n: 2}
		var takenErr, waitingErr error
		var wg sync.WaitGroup
		wg.Go(func() { takenErr = b.Do(ctx, taken) })
		synctest.Wait()
		wg.Go(func() { waitingErr = b.Do(ctx, waiting) })
		synctest.Wait()
		cancel()
		wg.Wait()
		if takenErr != nil || !taken.done {
			t.Errorf("call being flushed: got done=%v, %v, want its answer", taken.done, takenErr)
		}
		if !errors.Is(waitingErr, context.Canceled) || waiting.done {
			t.Errorf("call in line: got done=%v, %v, want context.Canceled and no flush", waiting.done, waitingErr)
		}
		if err := b.Do(ctx, waiting); !errors.Is(err, context.Canceled) {
			t.Errorf("call after the end: got %v, want context.Canceled", err)
		}
	})
}

// A caller that gives up at the moment the duty is passed to it must still do it,
// or everybody behind it waits for ever.
func TestGivingUpNeverLosesTheDuty(t *testing.T) {
	b := New(8, 1, func(items []*item) error {
		for _, it := range items {
			it.done = true
		}
		return nil
	})
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for range 500 {
				ctx, cancel := context.WithCancel(context.Background())
				go cancel()
				it := &item{}
				if err := b.Do(ctx, it); (err == nil) != it.done {
					t.Errorf("got done=%v, %v, want done exactly where there is no error", it.done, err)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	if err := b.Do(t.Context(), &item{}); err != nil {
		t.Errorf("afterwards: got %v, want a flush", err)
	}
}

func TestErrorIsTheAnswerToAllOfItsBatchOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{err: errors.New("disk full")}
		b := New(10, 1, r.flush)
		if err := b.Do(t.Context(), &item{}); !errors.Is(err, r.err) {
			t.Errorf("got %v, want %v", err, r.err)
		}
		r.err = nil
		if err := b.Do(t.Context(), &item{}); err != nil {
			t.Errorf("next batch: got %v, want no error", err)
		}
	})
}

func TestFlushersRunSideBySide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{}
		b := New(10, 2, r.flush)
		start := time.Now()
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() { _ = b.Do(t.Context(), &item{}) })
			synctest.Wait()
		}
		wg.Wait()
		if took := time.Since(start); took > 2*time.Second+pace {
			t.Errorf("time: got %v, want 2s", took)
		}
		if len(r.order) != 4 {
			t.Errorf("flushed: got %d, want 4", len(r.order))
		}
	})
}

func TestCallsOneAfterTheOtherAreNeverHeldUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(10, 1, func([]*item) error { time.Sleep(pace / 10); return nil })
		start := time.Now()
		for range 100 {
			_ = b.Do(t.Context(), &item{})
		}
		if took := time.Since(start); took != 100*pace/10 {
			t.Errorf("time: got %v, want that of the flushes, %v", took, 100*pace/10)
		}
	})
}

func TestFastFlushesWaitForCompany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		flushes := 0
		b := New(1000, 1, func([]*item) error { flushes++; time.Sleep(pace / 10); return nil })
		start := time.Now()
		var wg sync.WaitGroup
		const callers, calls = 20, 50
		for n := range callers {
			wg.Go(func() {
				for range calls {
					_ = b.Do(t.Context(), &item{})
					time.Sleep(time.Duration(n) * pace / 50) // what the callers do in between
				}
			})
		}
		wg.Wait()
		took := time.Since(start)
		if most := int(took/pace) + calls + 5; flushes > most {
			t.Errorf("flushes: got %d for %d calls in %v, want at most %d", flushes, callers*calls, took, most)
		}
		if limit := calls * 3 * pace; took > limit {
			t.Errorf("time: got %v, want at most %v: nobody waits for long", took, limit)
		}
	})
}

// Who waits for company must not wait for those who have gone.
func TestNobodyWaitsForCallersThatAreGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(1000, 1, func([]*item) error { return nil })
		var wg sync.WaitGroup
		for range 30 {
			wg.Go(func() { _ = b.Do(t.Context(), &item{}) })
		}
		wg.Wait()
		start := time.Now()
		for range 10 {
			_ = b.Do(t.Context(), &item{})
		}
		if took := time.Since(start); took > pace {
			t.Errorf("got ten calls in %v, want at most one wait, %v", took, pace)
		}
	})
}

func TestPutIsFlushedWithoutAWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{}
		b := New(10, 1, r.flush)
		for n := range 3 {
			b.Put(&item{n: n}) // the first starts a flush, the others stand in line
		}
		b.Close()
		if len(r.order) != 3 {
			t.Errorf("flushed: got %v, want all three before Close returned", r.order)
		}
	})
}

func TestCloseFinishesTheLineAndRefusesMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{}
		b := New(10, 1, r.flush)
		var wg sync.WaitGroup
		var failed atomic.Int32
		for range 5 {
			wg.Go(func() {
				if b.Do(t.Context(), &item{}) != nil {
					failed.Add(1)
				}
			})
			synctest.Wait()
		}
		b.Close()
		wg.Wait()
		if failed.Load() != 0 || len(r.order) != 5 {
			t.Errorf("got %d failed, %d flushed, want 0 and 5", failed.Load(), len(r.order))
		}
		if err := b.Do(t.Context(), &item{}); !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: got %v, want %v", err, ErrClosed)
		}
		b.Close()
	})
}

func BenchmarkDo(b *testing.B) {
	bt := New(1000, 1, func([]*item) error { return nil })
	b.ReportAllocs()
	b.SetParallelism(64)
	b.RunParallel(func(pb *testing.PB) {
		it := &item{}
		for pb.Next() {
			_ = bt.Do(context.Background(), it)
		}
	})
}
