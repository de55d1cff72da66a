package forward

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
)

// plant is a breaker with an application that the test makes up.
type plant struct {
	*breaker
	gate  *inbox.Gate
	lines *lineCounter
	asked atomic.Int64
	down  atomic.Bool // nobody answers the dial
}

// newPlant returns a plant whose breaker runs until the test ends. Call it
// inside of a bubble.
func newPlant(t *testing.T, slots int) *plant {
	t.Helper()
	o := Options{}
	o.setDefaults()
	p := &plant{gate: inbox.NewGate(), lines: &lineCounter{}}
	p.breaker = newBreaker(o.Breaker, slots, p.gate, slog.New(p.lines))
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		p.run(ctx, func(context.Context) error {
			p.asked.Add(1)
			if p.down.Load() {
				return errors.New("refused")
			}
			return nil
		})
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return p
}

// answer sends one request that ends with v and reports whether it could go.
func (p *plant) answer(v inbox.Verdict, message string) (inbox.Answer, bool) {
	return p.reply(judged{Answer: answerOf(v), message: message})
}

func answerOf(v inbox.Verdict) inbox.Answer {
	a := inbox.Answer{Verdict: v}
	if v != inbox.Done {
		a.Err = errors.New("the handler answered " + v.String())
	}
	if v.Sent() && v != inbox.NoAnswer {
		a.Status = 200
	}
	return a
}

func (p *plant) reply(j judged) (inbox.Answer, bool) {
	pass, ok := p.try()
	if !ok {
		return inbox.Answer{}, false
	}
	return p.judge(pass, j), true
}

// try takes a slot where there is one now.
func (p *plant) try() (pass, bool) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Nanosecond)
	defer cancel()
	got, err := p.acquire(ctx)
	return got, err == nil
}

func (p *plant) expect(t *testing.T, want BreakerState) {
	t.Helper()
	synctest.Wait()
	if s := p.snapshot(); s.state != want {
		t.Fatalf("got breaker %s (%s), want %s", s.state, s.why, want)
	}
}

// lineCounter is a slog.Handler that counts lines.
type lineCounter struct{ n, errors atomic.Int64 }

func (c *lineCounter) Enabled(context.Context, slog.Level) bool { return true }
func (c *lineCounter) WithAttrs([]slog.Attr) slog.Handler       { return c }
func (c *lineCounter) WithGroup(string) slog.Handler            { return c }
func (c *lineCounter) Handle(_ context.Context, r slog.Record) error {
	c.n.Add(1)
	if r.Level >= slog.LevelError {
		c.errors.Add(1)
	}
	return nil
}

func TestConnectionFailuresOpenAndADialCloses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPlant(t, 4)
		p.down.Store(true)
		p.answer(inbox.Unreachable, "a")
		p.answer(inbox.Done, "b")
		p.answer(inbox.Unreachable, "a")
		p.answer(inbox.Unreachable, "a")
		p.expect(t, BreakerClosed) // not in a row
		p.answer(inbox.Unreachable, "a")
		p.expect(t, BreakerOpen)

		time.Sleep(10 * time.Second)
		p.expect(t, BreakerOpen)
		if _, ok := p.try(); ok {
			t.Fatal("got a slot while the breaker is open")
		}
		if n := p.asked.Load(); n < 8 || n > 20 {
			t.Errorf("got %d dials in 10 s, want about one a second", n)
		}

		p.down.Store(false)
		time.Sleep(1100 * time.Millisecond)
		p.expect(t, BreakerHalfOpen)
		probe, ok := p.try()
		if !ok {
			t.Fatal("got no slot for the probe")
		}
		if _, ok := p.try(); ok {
			t.Fatal("got a second slot beside the probe")
		}
		p.judge(probe, judged{Answer: answerOf(inbox.Done)})
		p.expect(t, BreakerClosed)
	})
}

func TestRecoveryStartsSlowly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPlant(t, 16)
		for range 3 {
			p.answer(inbox.Unreachable, "a")
		}
		time.Sleep(2 * time.Second)
		p.answer(inbox.Done, "a")
		p.expect(t, BreakerClosed)
		for _, want := range []int{2, 4, 8, 16, 16} {
			var passes []pass
			for {
				got, ok := p.try()
				if !ok {
					break
				}
				passes = append(passes, got)
			}
			if len(passes) != want {
				t.Errorf("got %d requests at once, want %d", len(passes), want)
			}
			for _, pass := range passes {
				p.judge(pass, judged{Answer: answerOf(inbox.Done)})
			}
		}
	})
}

func TestFailureRateOpensAndTheProbePauseGrows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPlant(t, 4)
		for i := range 9 {
			p.answer(inbox.Failed, fmt.Sprint(i))
			p.answer(inbox.Done, "x")
		}
		p.expect(t, BreakerClosed) // 18 requests are no rate yet
		p.answer(inbox.Failed, "y")
		p.answer(inbox.NoAnswer, "y")
		p.expect(t, BreakerOpen)

		var pauses []time.Duration
		for range 10 {
			start := time.Now()
			for p.snapshot().state == BreakerOpen {
				time.Sleep(100 * time.Millisecond)
				synctest.Wait()
			}
			pauses = append(pauses, time.Since(start))
			if _, ok := p.answer(inbox.Failed, "z"); !ok {
				t.Fatal("got no slot for the probe")
			}
			p.expect(t, BreakerOpen)
		}
		if pauses[0] > 1200*time.Millisecond || pauses[9] < time.Minute || pauses[9] > 91*time.Second {
			t.Errorf("got pauses %v, want them to grow from below 1 s to 60 to 90 s", pauses)
		}
		if n := p.lines.n.Load(); n > 60 {
			t.Errorf("got %d log lines, want at most 60", n)
		}
	})
}

func TestOldFailuresAreForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPlant(t, 4)
		for i := range 100 {
			p.answer(inbox.Failed, fmt.Sprint(i))
			time.Sleep(time.Second) // ten in a window of 10 s
		}
		p.expect(t, BreakerClosed)
	})
}

func TestLongOutageShutsTheGateUntilTheApplicationIsBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPlant(t, 4)
		p.down.Store(true)
		for range 3 {
			p.answer(inbox.Unreachable, "a")
		}
		time.Sleep(59 * time.Second)
		if !p.gate.IsOpen() {
			t.Error("got the gate shut before a minute, want it open")
		}
		time.Sleep(2 * time.Second)
		if c, _ := p.gate.State(); len(c) != 1 || c[0].Hindrance != inbox.HindranceBreaker || c[0].Why == "" {
			t.Errorf("got closures %v, want the breaker's", c)
		}
		time.Sleep(time.Hour)
		if n := p.asked.Load(); n > 2*3600 {
			t.Errorf("got %d dials in an hour, want at most two a second", n)
		}
		if n := p.lines.n.Load(); n > 60 {
			t.Errorf("got %d log lines, want at most 60", n)
		}
		p.down.Store(false)
		time.Sleep(1100 * time.Millisecond)
		if !p.gate.IsOpen() {
			t.Error("got the gate shut after the application came back, want it open")
		}
		p.expect(t, BreakerHalfOpen)
	})
}

// A probe with a message needs the gate open; one that fails shuts it again,
// and no oftener than once a minute, as it costs redeliveries.
func TestProbesWithAMessageOpenTheGateAtMostOnceAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPlant(t, 4)
		for i := range 3 {
			p.answer(inbox.Misconfigured, fmt.Sprint(i))
		}
		p.expect(t, BreakerOpen)
		start, shut, opened := time.Now(), false, 0
		for time.Since(start) < time.Hour {
			time.Sleep(500 * time.Millisecond)
			synctest.Wait()
			if shut && p.gate.IsOpen() {
				opened++
			}
			shut = !p.gate.IsOpen()
			if !shut {
				p.answer(inbox.Misconfigured, "x")
			}
		}
		if opened < 30 || opened > 60 {
			t.Errorf("the gate opened %d times in an hour, want 30 to 60", opened)
		}
		if n := p.lines.errors.Load(); n == 0 {
			t.Error("got no line at level error, want a loud one")
		}
	})
}

func TestOneStrangeMessageDoesNotOpen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPlant(t, 4)
		for range 50 {
			p.answer(inbox.Misconfigured, "a") // a handler that knows no such order
		}
		p.expect(t, BreakerClosed)
		for i := range 50 {
			p.answer(inbox.Misconfigured, fmt.Sprint(i))
			p.answer(inbox.Done, "x")
		}
		p.expect(t, BreakerClosed)
	})
}

func TestRetryAfterPausesTheWholeConsumer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, status := range []int{http.StatusTooManyRequests, http.StatusServiceUnavailable} {
			p := newPlant(t, 4)
			j := judged{Answer: answerOf(inbox.NotNow)}
			j.Status, j.RetryAfter = status, 30*time.Second
			p.reply(j)
			p.expect(t, BreakerOpen)
			time.Sleep(29 * time.Second)
			p.expect(t, BreakerOpen)
			time.Sleep(1500 * time.Millisecond)
			p.expect(t, BreakerHalfOpen)
			p.answer(inbox.Done, "a")
			p.expect(t, BreakerClosed)
		}
	})
}

func TestParkingGuard(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPlant(t, 4)
		refuse := func(message string) inbox.Verdict {
			a, ok := p.answer(inbox.Refused, message)
			if !ok {
				t.Fatal("got no slot")
			}
			return a.Verdict
		}
		// Refusals between successes park.
		for i := range 30 {
			if got := refuse(fmt.Sprint(i)); got != inbox.Refused {
				t.Fatalf("refusal %d: got %s, want refused", i, got)
			}
			if i%5 == 0 {
				p.answer(inbox.Done, "good")
			}
		}
		p.answer(inbox.Done, "good")
		// Nine different ones park, the same one again and again does too.
		for i := range 20 {
			if got := refuse(fmt.Sprint(i % 9)); got != inbox.Refused {
				t.Fatalf("got %s, want refused", got)
			}
		}
		// The handler's own word is no sign of a wrong set-up.
		own, _ := p.reply(judged{Answer: answerOf(inbox.Refused), message: "own", explicit: true})
		if own.Verdict != inbox.Refused {
			t.Fatalf("Inbox-Action: park: got %s, want refused", own.Verdict)
		}
		p.expect(t, BreakerClosed)
		if got := refuse("tenth"); got != inbox.Misconfigured {
			t.Fatalf("tenth message: got %s, want misconfigured", got)
		}
		p.expect(t, BreakerOpen)

		// The probe is refused as well: not parked, and the breaker stays open.
		time.Sleep(time.Second)
		p.expect(t, BreakerHalfOpen)
		if got := refuse("eleventh"); got != inbox.Misconfigured {
			t.Fatalf("probe: got %s, want misconfigured", got)
		}
		p.expect(t, BreakerOpen)

		// One success, and refusals park again.
		time.Sleep(2 * time.Second)
		p.expect(t, BreakerHalfOpen)
		p.answer(inbox.Done, "good")
		p.expect(t, BreakerClosed)
		if got := refuse("twelfth"); got != inbox.Refused {
			t.Fatalf("after a success: got %s, want refused", got)
		}
	})
}

// A request that began before the breaker opened says nothing about now.
func TestLateAnswersDoNotMoveTheBreaker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPlant(t, 8)
		late, _ := p.try()
		late2, _ := p.try()
		for range 3 {
			p.answer(inbox.Unreachable, "a")
		}
		p.expect(t, BreakerOpen)
		p.judge(late, judged{Answer: answerOf(inbox.Done)})
		p.expect(t, BreakerOpen)
		time.Sleep(time.Second)
		p.expect(t, BreakerHalfOpen)
		p.judge(late2, judged{Answer: answerOf(inbox.Failed)})
		p.expect(t, BreakerHalfOpen)
		if n, _ := p.load(); n != 0 {
			t.Errorf("got %d in flight, want 0", n)
		}
	})
}

func TestSlotsAreBoundedAndComeBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPlant(t, 3)
		var most, now, sent atomic.Int64
		var wg sync.WaitGroup
		for i := range 200 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i)*time.Millisecond)
				defer cancel()
				pass, err := p.acquire(ctx)
				if err != nil {
					return
				}
				sent.Add(1)
				most.Store(max(most.Load(), now.Add(1)))
				time.Sleep(3 * time.Millisecond)
				now.Add(-1)
				p.judge(pass, judged{Answer: answerOf(inbox.Done)})
			})
		}
		time.Sleep(2 * time.Millisecond)
		if n, oldest := p.load(); n != 3 || oldest != 2*time.Millisecond {
			t.Errorf("got %d in flight, the oldest for %v; want 3 and 2ms", n, oldest)
		}
		wg.Wait()
		if most.Load() != 3 || sent.Load() < 100 {
			t.Errorf("got %d at once and %d in all, want 3 and at least 100", most.Load(), sent.Load())
		}
		if n, oldest := p.load(); n != 0 || oldest != 0 || len(p.waiting) != 0 || len(p.free) != 3 {
			t.Errorf("got %d in flight, %d waiting, %d free; want 0, 0, 3", n, len(p.waiting), len(p.free))
		}
	})
}

func TestRetryBudget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(1)
		take := func(d time.Duration) bool {
			ctx, cancel := context.WithTimeout(context.Background(), d)
			defer cancel()
			return b.take(ctx) == nil
		}
		for i := range 10 {
			if !take(time.Nanosecond) {
				t.Fatalf("retry %d of the burst had to wait", i)
			}
		}
		if take(time.Millisecond) {
			t.Error("got a retry above the burst at once")
		}
		// A trickle, in order.
		start := time.Now()
		for range 20 {
			take(time.Hour)
		}
		if got := time.Since(start); got < 1900*time.Millisecond || got > 2100*time.Millisecond {
			t.Errorf("20 retries without a success took %v, want about 2s", got)
		}
		// Ten successes earn one.
		done := make(chan bool)
		go func() { done <- take(50 * time.Millisecond) }()
		synctest.Wait()
		for range 10 {
			b.success()
		}
		if !<-done {
			t.Error("ten successes did not let a retry go")
		}
	})
}
