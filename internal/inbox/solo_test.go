package inbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

var errCut = errors.New("the connection ended before an answer")

// fragile is a handler that dies of a message called poison and takes every
// request that it has in hand with it. Who starts it again needs a moment.
type fragile struct {
	mu      sync.Mutex
	took    time.Duration // for a request
	slow    time.Duration // for one of the message called slow
	dies    time.Duration // from the poison's request to the death
	down    time.Time     // nobody there until then
	dead    chan struct{} // closed at the next death
	deaths  int
	cut     map[MessageID]int // requests cut, by message
	started map[MessageID]time.Time
	most    int // in flight at once
	now     int
}

func newFragile() *fragile {
	return &fragile{
		took: 10 * time.Millisecond, dead: make(chan struct{}),
		cut: map[MessageID]int{}, started: map[MessageID]time.Time{},
	}
}

func (h *fragile) Forward(ctx context.Context, d *Delivery) Answer {
	h.mu.Lock()
	if time.Now().Before(h.down) {
		h.mu.Unlock()
		return Answer{Verdict: Unreachable, Err: errors.New("refused")}
	}
	d.Requests++
	h.now++
	h.most = max(h.most, h.now)
	h.started[d.ID] = time.Now()
	dead, took := h.dead, h.took
	if d.ID == "slow" {
		took = h.slow
	}
	h.mu.Unlock()
	defer func() { h.mu.Lock(); h.now--; h.mu.Unlock() }()
	if d.ID == "poison" {
		time.AfterFunc(h.dies, h.die)
		took = time.Hour
	}
	select {
	case <-dead:
		h.mu.Lock()
		defer h.mu.Unlock()
		h.cut[d.ID]++
		return Answer{Verdict: NoAnswer, Cut: true, Err: errCut}
	case <-time.After(took):
		return ok200
	}
}

func (h *fragile) die() {
	h.mu.Lock()
	defer h.mu.Unlock()
	close(h.dead)
	h.dead = make(chan struct{})
	h.deaths++
	h.down = time.Now().Add(100 * time.Millisecond)
}

// TestAMessageThatKillsTheHandlerCostsItsNeighboursOneAttempt, however often it
// is tried and however many there are.
func TestAMessageThatKillsTheHandlerCostsItsNeighboursOneAttempt(t *testing.T) {
	for name, dies := range map[string]time.Duration{"at once": time.Millisecond, "after a while": 2 * soloFor} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const n, poison = 1000, 50
				m, h := newMemory(), newFragile()
				h.dies, h.slow = dies, soloFor*3/2
				p := newProcessor(m, h)
				p.Retry.MaxAttempts = 10
				prefetch := make(chan struct{}, 64)
				outcomes := map[MessageID]Result{}
				var mu sync.Mutex
				var wg sync.WaitGroup
				for i := range n {
					id := fmt.Sprint(i)
					switch i {
					case poison:
						id = "poison"
					case poison + 3:
						id = "slow"
					}
					prefetch <- struct{}{}
					wg.Go(func() {
						defer func() { <-prefetch }()
						res := p.Process(t.Context(), delivery(id, "{}"))
						mu.Lock()
						defer mu.Unlock()
						outcomes[MessageID(id)] = res
					})
				}
				wg.Wait()
				for id, res := range outcomes {
					want := Processed
					if id == "poison" {
						want = Parked
					}
					if res.Outcome != want {
						t.Errorf("%s: got %v (%v), want %v", id, res.Outcome, res.Err, want)
					}
				}
				if h.deaths != 10 {
					t.Errorf("got %d deaths, want max_attempts = 10", h.deaths)
				}
				for id, cut := range h.cut {
					if id != "poison" && cut > 1 {
						t.Errorf("%s lost %d attempts to its neighbour, want 1 at most", id, cut)
					}
				}
			})
		})
	}
}

// TestASuspectStopsTheOthersForAWhileOnly: what it does not kill within soloFor
// it does not hold up.
func TestASuspectStopsTheOthersForAWhileOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newFragile()
		h.slow = time.Minute
		p := newProcessor(newMemory(), h)
		suspect := delivery("slow", "{}")
		suspect.Suspect = true
		begun := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() { p.Process(t.Context(), suspect) })
		synctest.Wait()
		for i := range 32 {
			wg.Go(func() { p.Process(t.Context(), delivery(fmt.Sprint(i), "{}")) })
		}
		wg.Wait()
		for id, at := range h.started {
			if got := at.Sub(begun); id != "slow" && (got < soloFor || got > soloFor+time.Second) {
				t.Errorf("%s started after %v, want %v", id, got, soloFor)
			}
		}
		if p.Window.taken != 0 || p.Window.stock != 0 {
			t.Errorf("left: %d places taken, %d messages in stock; want none", p.Window.taken, p.Window.stock)
		}
	})
}

// TestWhoWaitsToGoAloneIsNotStarved by a queue that never ends, and gives up
// with its delivery.
func TestWhoWaitsToGoAloneIsNotStarved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newFragile()
		h.took = time.Second
		p := newProcessor(newMemory(), h)
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for w := range 64 {
			wg.Go(func() {
				for i := 0; ctx.Err() == nil; i++ {
					p.Process(ctx, delivery(fmt.Sprint(w, "-", i), "{}"))
				}
			})
		}
		time.Sleep(10 * time.Second)
		suspect := delivery("suspect", "{}")
		suspect.Suspect = true
		begun := time.Now()
		p.Process(ctx, suspect)
		// Those in front of it, four rounds of them, then alone.
		if took := time.Since(begun); took > 7*time.Second {
			t.Errorf("it took %v, want about five rounds of requests", took)
		}
		gone, giveUp := context.WithCancel(t.Context())
		late := delivery("late", "{}")
		late.Suspect = true
		wg.Go(func() {
			if got := p.Process(gone, late); got.Outcome != Returned {
				t.Errorf("given up: got %v, want returned", got.Outcome)
			}
		})
		time.Sleep(100 * time.Millisecond)
		giveUp()
		time.Sleep(3 * time.Second)
		stop()
		wg.Wait()
		if p.Window.taken != 0 || p.Window.stock != 0 {
			t.Errorf("left: %d places taken, %d messages in stock; want none", p.Window.taken, p.Window.stock)
		}
	})
}

func TestInProbationMessagesGoOneAtATimeUntilEnoughAreSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newFragile()
		p := newProcessor(newMemory(), h)
		p.Probation = NewProbation(20, 20)
		run := func(from, to int) {
			var wg sync.WaitGroup
			for i := from; i < to; i++ {
				wg.Go(func() { p.Process(t.Context(), delivery(fmt.Sprint(i), "{}")) })
			}
			wg.Wait()
		}
		run(0, 19)
		if left, since := p.Probation.State(); h.most != 1 || left != 1 || since.IsZero() {
			t.Errorf("after 19: %d at once and %d left, want 1 and 1", h.most, left)
		}
		run(19, 20)
		if p.Probation.On() {
			t.Error("after 20: still on probation")
		}
		run(20, 60)
		if h.most != 16 {
			t.Errorf("after the probation: %d at once, want 16", h.most)
		}
	})
}

// A slow handler cannot have had many messages in hand: it is not held to one at a
// time for as many as a quick one.
func TestProbationOfASlowHandlerIsShort(t *testing.T) {
	for _, tc := range []struct {
		took time.Duration
		want int
	}{{time.Second, 32}, {100 * time.Millisecond, 101}, {time.Millisecond, 256}} {
		synctest.Test(t, func(t *testing.T) {
			p := NewProbation(32, 256)
			n, ends := 0, 0
			for p.On() {
				time.Sleep(tc.took)
				p.settled(Returned) // counts for nothing
				if p.settled(Processed) {
					ends++
				}
				n++
			}
			if n != tc.want || ends != 1 || p.settled(Processed) {
				t.Errorf("%v a message: over after %d, told %d times; want %d, once", tc.took, n, ends, tc.want)
			}
		})
	}
}

// TestASingleDeliveryIsNotKeptForItsNextAttempt: nothing else would be handed
// over meanwhile. A handler that is away is waited for: the others would find it
// away too.
func TestASingleDeliveryIsNotKeptForItsNextAttempt(t *testing.T) {
	for name, tc := range map[string]struct {
		list     []Answer
		outcome  Outcome
		requests int
	}{
		"500":                {[]Answer{err500, ok200}, Deferred, 1},
		"409":                {[]Answer{{Verdict: Busy, Status: 409}, ok200}, Deferred, 1},
		"404":                {[]Answer{{Verdict: Misconfigured, Status: 404}, ok200}, Deferred, 1},
		"connection cut":     {[]Answer{{Verdict: NoAnswer, Cut: true}, ok200}, Deferred, 1},
		"connection refused": {[]Answer{{Verdict: Unreachable}, ok200}, Processed, 2},
		"503":                {[]Answer{{Verdict: NotNow, Status: 503}, ok200}, Processed, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &answers{list: tc.list}
				p, d := newProcessor(newMemory(), f), delivery("a", "{}")
				d.Single = true
				if got := p.Process(t.Context(), d); got.Outcome != tc.outcome || f.requests() != tc.requests {
					t.Errorf("got %v after %d requests, want %v after %d", got.Outcome, f.requests(), tc.outcome, tc.requests)
				}
			})
		})
	}
}
