package inbox

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// memory is a ledger and a shelf without durability, for the rules of the way
// alone. The real stores are defined by storetest.
type memory struct {
	mu       sync.Mutex
	records  map[Key]Fingerprint
	shelf    map[string]*ParkedMessage
	claims   int
	fail     error // every call fails with it
	evidence bool  // Record wants a record that somebody else made
}

func newMemory() *memory {
	return &memory{records: map[Key]Fingerprint{}, shelf: map[string]*ParkedMessage{}}
}

func (m *memory) Claim(_ context.Context, k Key, fp Fingerprint) (Claim, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.claims++
	if m.fail != nil {
		return Claim{}, m.fail
	}
	c := Claim{Key: k, Fingerprint: fp}
	if old, ok := m.records[k]; ok {
		c.Status = ClaimRecorded
		if !old.Matches(fp) {
			c.Status = ClaimMismatch
		}
	}
	return c, nil
}

func (m *memory) ClaimAll(claims []*Claiming) {
	for _, c := range claims {
		c.Claim, c.Err = m.Claim(context.Background(), c.Key, c.Fingerprint)
	}
}

func (m *memory) Record(_ context.Context, c Claim) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil {
		return m.fail
	}
	if _, ok := m.records[c.Key]; m.evidence && !ok {
		return ErrNoEvidence
	}
	m.records[c.Key] = c.Fingerprint
	return nil
}

func (m *memory) Release(Claim) {}

func (m *memory) Park(_ context.Context, p *ParkedMessage) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil {
		return m.fail
	}
	if p.ID == "" {
		p.ID = string(p.MessageID) + "@1"
	}
	m.shelf[p.ID] = p
	return nil
}

func (m *memory) TakeDue(_ context.Context, _ string, n int) (due []*ParkedMessage, _ error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.shelf {
		if p.State == StateDeferred && !p.Due.After(time.Now()) && len(due) < n {
			taken := *p
			p.Due = time.Now().Add(time.Hour)
			due = append(due, &taken)
		}
	}
	return due, nil
}

func (m *memory) PutBack(_ context.Context, id string, due time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.shelf[id].Due = due
	return nil
}

func (m *memory) Remove(_ context.Context, id string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.shelf, id)
	return nil
}

func (m *memory) setFail(err error) { m.mu.Lock(); m.fail = err; m.mu.Unlock() }

func (m *memory) stored() (all []ParkedMessage) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.shelf {
		all = append(all, *p)
	}
	return all
}

// answers is a handler that gives its answers in turn, the last one for ever.
type answers struct {
	mu      sync.Mutex
	list    []Answer
	numbers []int // of the requests it saw
	at      []time.Time
	took    time.Duration
	before  func() // runs while a request is in flight
}

func (a *answers) Forward(ctx context.Context, d *Delivery) Answer {
	if ctx.Err() != nil {
		return Answer{Verdict: NotSent, Err: context.Cause(ctx)}
	}
	d.Requests++
	d.LastAttempt = time.Now()
	if a.before != nil {
		a.before()
	}
	time.Sleep(a.took)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.numbers = append(a.numbers, d.Requests)
	a.at = append(a.at, time.Now())
	got := a.list[0]
	if len(a.list) > 1 {
		a.list = a.list[1:]
	}
	return got
}

func (a *answers) requests() int { a.mu.Lock(); defer a.mu.Unlock(); return len(a.numbers) }

func newProcessor(m *memory, f Forwarder) *Processor {
	return &Processor{
		Consumer:  "billing",
		Identity:  Identity{Sources: [][]Source{{{Kind: SourceProperty}}}},
		MaxBody:   1 << 20,
		Retry:     Retry{Initial: 500 * time.Millisecond, Max: 30 * time.Second, MaxAttempts: 3, Hold: 10 * time.Minute},
		Ledger:    m,
		Shelf:     m,
		Parker:    m,
		Forwarder: f,
		Window:    NewWindow(16),
		Log:       slog.New(slog.DiscardHandler),
		Metrics:   NewMetrics(prometheus.NewRegistry()).For("billing"),
	}
}

func delivery(id, body string) *Delivery {
	return &Delivery{
		Message:  Message{Properties: Properties{MessageID: id}, Body: []byte(body)},
		Received: time.Now(), DeliveryCount: -1, Queue: "orders",
	}
}

var (
	ok200  = Answer{Verdict: Done, Status: 200}
	err500 = Answer{Verdict: Failed, Status: 500, Err: errors.New("500")}
)

func TestProcessOutcomes(t *testing.T) {
	refused := Answer{Verdict: Refused, Status: 422, Err: errors.New("422")}
	busy := Answer{Verdict: Busy, Status: 409, Err: errors.New("409")}
	unreachable := Answer{Verdict: Unreachable, Err: errors.New("refused")}
	notNow := Answer{Verdict: NotNow, Status: 503, Err: errors.New("503")}
	for name, tc := range map[string]struct {
		list     []Answer
		change   func(*Processor, *memory, *Delivery)
		outcome  Outcome
		reason   ParkReason
		requests int
		recorded bool
	}{
		"2xx":                              {list: []Answer{ok200}, outcome: Processed, requests: 1, recorded: true},
		"500 then 2xx":                     {list: []Answer{err500, ok200}, outcome: Processed, requests: 2, recorded: true},
		"500 for ever":                     {list: []Answer{err500}, outcome: Parked, reason: AttemptsUsed, requests: 3},
		"422":                              {list: []Answer{refused}, outcome: Parked, reason: HandlerReject, requests: 1},
		"busy is no attempt":               {list: []Answer{busy, busy, busy, busy, ok200}, outcome: Processed, requests: 5, recorded: true},
		"503 is no attempt":                {list: []Answer{notNow, notNow, notNow, notNow, ok200}, outcome: Processed, requests: 5, recorded: true},
		"refused connection is no attempt": {list: []Answer{unreachable, unreachable, unreachable, unreachable, ok200}, outcome: Processed, requests: 5, recorded: true},
		"no ID": {
			list: []Answer{ok200}, change: func(_ *Processor, _ *memory, d *Delivery) { d.Properties.MessageID = "" },
			outcome: Parked, reason: MissingID,
		},
		"no ID, forward": {list: []Answer{ok200}, change: func(p *Processor, _ *memory, d *Delivery) {
			d.Properties.MessageID, p.MissingID = "", ForwardMissingID
		}, outcome: Processed, requests: 1},
		"no ID, reject": {list: []Answer{ok200}, change: func(p *Processor, _ *memory, d *Delivery) {
			d.Properties.MessageID, p.MissingID = "", RejectMissingID
		}, outcome: Rejected},
		"too large": {
			list: []Answer{ok200}, change: func(p *Processor, _ *memory, _ *Delivery) { p.MaxBody = 1 },
			outcome: Parked, reason: TooLarge,
		},
		"recorded before": {list: []Answer{ok200}, change: func(p *Processor, m *memory, d *Delivery) {
			m.records[Key{"billing", "a"}] = p.Identity.FingerprintOf(&d.Message)
		}, outcome: Duplicate, recorded: true},
		"other body": {list: []Answer{ok200}, change: func(_ *Processor, m *memory, _ *Delivery) {
			m.records[Key{"billing", "a"}] = Fingerprint{9}
		}, outcome: Parked, reason: Mismatch, recorded: true},
		"other body, ack": {list: []Answer{ok200}, change: func(p *Processor, m *memory, _ *Delivery) {
			m.records[Key{"billing", "a"}] = Fingerprint{9}
			p.AckMismatch = true
		}, outcome: Duplicate, recorded: true},
		"2xx without evidence": {
			list: []Answer{ok200}, change: func(_ *Processor, m *memory, _ *Delivery) { m.evidence = true },
			outcome: Parked, reason: NoEvidence, requests: 3,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, f := newMemory(), &answers{list: tc.list}
				p, d := newProcessor(m, f), delivery("a", "{}")
				if tc.change != nil {
					tc.change(p, m, d)
				}
				res := p.Process(t.Context(), d)
				if res.Outcome != tc.outcome || res.Reason != tc.reason {
					t.Errorf("got %v %v (%v), want %v %v", res.Outcome, res.Reason, res.Err, tc.outcome, tc.reason)
				}
				if f.requests() != tc.requests {
					t.Errorf("got %d requests, want %d", f.requests(), tc.requests)
				}
				if _, ok := m.records[Key{"billing", "a"}]; ok != tc.recorded {
					t.Errorf("recorded: got %v, want %v", ok, tc.recorded)
				}
				if parked := len(m.stored()); (parked == 1) != (tc.outcome == Parked) {
					t.Errorf("got %d stored messages for outcome %v", parked, tc.outcome)
				}
			})
		})
	}
}

func TestAMessageInFlightIsNeverForwardedBesideItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, f := newMemory(), &answers{list: []Answer{ok200}, took: 5 * time.Second}
		p := newProcessor(m, f)
		results := make(chan Outcome, 20)
		for range 20 {
			go func() { results <- p.Process(t.Context(), delivery("a", "{}")).Outcome }()
		}
		counts := map[Outcome]int{}
		for range 20 {
			counts[<-results]++
		}
		if f.requests() != 1 || counts[Processed] != 1 || counts[Duplicate] != 19 {
			t.Errorf("got %d requests and %v, want 1 request, 1 processed, 19 duplicates", f.requests(), counts)
		}
	})
}

// A duplicate that waited for the record of its original knows the answer.
func TestADuplicateBehindItsOriginalCostsNoLookUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, f := newMemory(), &answers{list: []Answer{ok200}, took: 5 * time.Second}
		p := newProcessor(m, f)
		results := make(chan Result, 2)
		go func() { results <- p.Process(t.Context(), delivery("a", "{}")) }()
		synctest.Wait()
		go func() { results <- p.Process(t.Context(), delivery("a", "{}")) }()
		if got := []Outcome{(<-results).Outcome, (<-results).Outcome}; got[0] != Processed || got[1] != Duplicate || m.claims != 1 {
			t.Errorf("got %v after %d claims, want processed and duplicate after 1", got, m.claims)
		}

		// With another body it is no duplicate, and what was not recorded no answer.
		m, f = newMemory(), &answers{list: []Answer{ok200}, took: 5 * time.Second}
		p = newProcessor(m, f)
		go func() { results <- p.Process(t.Context(), delivery("a", "{}")) }()
		synctest.Wait()
		other := delivery("a", "[]")
		go func() { results <- p.Process(t.Context(), other) }()
		if a, b := <-results, <-results; a.Outcome != Processed || b.Reason != Mismatch {
			t.Errorf("got %v and %v, want processed and a mismatch", a, b)
		}
	})
}

func TestARequestOutlivesItsSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, f := newMemory(), &answers{list: []Answer{ok200}, took: 5 * time.Second}
		p := newProcessor(m, f)
		session, lost := context.WithCancel(t.Context())
		f.before = lost // the broker connection breaks while the request is in flight
		if got := p.Process(session, delivery("a", "{}")); got.Outcome != Processed {
			t.Fatalf("got %v (%v), want processed", got.Outcome, got.Err)
		}
		f.before = nil
		if got := p.Process(t.Context(), delivery("a", "{}")); got.Outcome != Duplicate {
			t.Errorf("redelivery: got %v, want duplicate", got.Outcome)
		}
	})
}

func TestALostSessionCostsNoAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, f := newMemory(), &answers{list: []Answer{err500}}
		p := newProcessor(m, f)
		session, lost := context.WithCancel(t.Context())
		f.before = lost
		if got := p.Process(session, delivery("a", "{}")); got.Outcome != Returned {
			t.Fatalf("got %v, want returned", got.Outcome)
		}
		f.before = nil
		got := p.Process(t.Context(), delivery("a", "{}"))
		if got.Outcome != Parked || f.requests() != 3 {
			t.Errorf("got %v after %d requests, want parked after 3", got.Outcome, f.requests())
		}
		if last := f.numbers[len(f.numbers)-1]; last != 3 {
			t.Errorf("the last request was numbered %d, want 3", last)
		}
	})
}

func TestNothingIsForwardedWhileTheStoreFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, f := newMemory(), &answers{list: []Answer{ok200}}
		p := newProcessor(m, f)
		m.setFail(errors.New("no space left"))
		done := make(chan Result)
		go func() { done <- p.Process(t.Context(), delivery("a", "{}")) }()
		time.Sleep(time.Minute)
		if f.requests() != 0 {
			t.Fatalf("got %d requests without a claim", f.requests())
		}
		m.setFail(nil)
		if got := <-done; got.Outcome != Processed {
			t.Errorf("got %v (%v), want processed once the store is back", got.Outcome, got.Err)
		}
	})
}

// TestACrashCanRepeatOnlyAWindowOfRequests: where records do not get through, no
// more requests are sent than the window holds.
func TestACrashCanRepeatOnlyAWindowOfRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		f := &answers{list: []Answer{ok200}}
		p := newProcessor(m, f)
		p.Window = NewWindow(4)
		p.Ledger = recordFails{m}
		ctx, cancel := context.WithCancel(t.Context())
		stop := make(chan struct{})
		p.Stop = stop
		done := make(chan Outcome)
		for i := range 50 {
			go func() { done <- p.Process(ctx, delivery(string(rune('A'+i)), "{}")).Outcome }()
		}
		time.Sleep(time.Minute)
		if got := f.requests(); got != 4 {
			t.Errorf("got %d requests with none recorded, want the window of 4", got)
		}
		cancel()
		close(stop)
		for range 50 {
			if o := <-done; o != Returned {
				t.Errorf("got %v, want returned", o)
			}
		}
	})
}

type recordFails struct{ *memory }

func (recordFails) Record(context.Context, Claim) error { return errors.New("no space left") }

func TestAFailedRecordIsRepeatedAndTheRequestIsNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, f := newMemory(), &answers{list: []Answer{ok200}}
		p := newProcessor(m, f)
		session, lost := context.WithCancel(t.Context())
		f.before = func() { m.setFail(errors.New("unexpected EOF")); lost() }
		done := make(chan Result)
		go func() { done <- p.Process(session, delivery("a", "{}")) }()
		time.Sleep(time.Minute)
		m.setFail(nil)
		if got := <-done; got.Outcome != Processed || f.requests() != 1 {
			t.Errorf("got %v after %d requests, want processed after 1", got.Outcome, f.requests())
		}
	})
}

func TestTheEndOfTheGraceEndsARecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, f := newMemory(), &answers{list: []Answer{ok200}}
		p := newProcessor(m, f)
		stop := make(chan struct{})
		p.Stop = stop
		f.before = func() { m.setFail(errors.New("unexpected EOF")) }
		time.AfterFunc(25*time.Second, func() { close(stop) })
		start := time.Now()
		if got := p.Process(t.Context(), delivery("a", "{}")); got.Outcome != Returned {
			t.Errorf("got %v, want returned: nothing durable says that it was processed", got.Outcome)
		}
		if took := time.Since(start); took != 25*time.Second {
			t.Errorf("took %v, want 25s", took)
		}
	})
}

func TestARequestCutByTheEndOfTheGraceParksNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cut := Answer{Verdict: NoAnswer, Err: errors.New("cut")}
		m, f := newMemory(), &answers{list: []Answer{cut}}
		p := newProcessor(m, f)
		p.Retry.MaxAttempts = 1
		stop := make(chan struct{})
		p.Stop = stop
		ctx, cancel := context.WithCancel(t.Context())
		f.before = func() { cancel(); close(stop) }
		if got := p.Process(ctx, delivery("a", "{}")); got.Outcome != Returned || len(m.stored()) != 0 {
			t.Errorf("got %v with %d stored, want returned with none", got.Outcome, len(m.stored()))
		}
	})
}

func TestHoldEndsInDeferralAndAttemptsSurvive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		notNow := Answer{Verdict: NotNow, Status: 503, RetryAfter: time.Hour, Err: errors.New("503")}
		m, f := newMemory(), &answers{list: []Answer{err500, notNow, ok200}}
		p := newProcessor(m, f)
		if got := p.Process(t.Context(), delivery("a", "{}")); got.Outcome != Deferred {
			t.Fatalf("got %v, want deferred", got.Outcome)
		}
		stored := m.stored()
		if len(stored) != 1 || stored[0].Attempts != 1 || stored[0].Requests != 2 {
			t.Fatalf("stored: got %+v, want one with 1 attempt and 2 requests", stored)
		}
		if in := time.Until(stored[0].Due); in < 59*time.Minute {
			t.Errorf("due in %v, want the Retry-After of an hour", in)
		}

		// A restart later the message is taken up by itself.
		ctx, stop := context.WithCancel(t.Context())
		p = newProcessor(m, f)
		done := make(chan error)
		go func() { done <- p.RunDue(ctx, NewGate(), 4) }()
		time.Sleep(50 * time.Minute)
		if n := f.requests(); n != 2 {
			t.Errorf("got %d requests before it was due, want 2", n)
		}
		time.Sleep(20 * time.Minute)
		stop()
		<-done
		if n := f.requests(); n != 3 || f.numbers[2] != 3 {
			t.Errorf("got %d requests numbered %v, want a third one numbered 3", n, f.numbers)
		}
		if left := len(m.stored()); left != 0 {
			t.Errorf("got %d stored messages after it was processed, want 0", left)
		}
	})
}

func TestNoDeliveryIsHeldLongerThanHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, f := newMemory(), &answers{list: []Answer{{Verdict: Busy, Status: 409, Err: errors.New("409")}}}
		p, start := newProcessor(m, f), time.Now()
		if got := p.Process(t.Context(), delivery("a", "{}")); got.Outcome != Deferred {
			t.Errorf("got %v, want deferred", got.Outcome)
		}
		if held := time.Since(start); held > p.Retry.Hold {
			t.Errorf("held for %v, want at most %v", held, p.Retry.Hold)
		}
	})
}

func TestTakeUpStopsWhileTheGateIsShut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, f := newMemory(), &answers{list: []Answer{ok200}}
		m.shelf["1"] = &ParkedMessage{
			ID: "1", Consumer: "billing", State: StateDeferred, Due: time.Now(),
			Message: Message{Properties: Properties{MessageID: "a"}},
		}
		p, gate := newProcessor(m, f), NewGate()
		gate.Shut(HindrancePaused, "by hand")
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- p.RunDue(ctx, gate, 4) }()
		time.Sleep(time.Minute)
		if f.requests() != 0 {
			t.Errorf("got %d requests while paused, want 0", f.requests())
		}
		gate.Open(HindrancePaused)
		time.Sleep(time.Minute)
		stop()
		<-done
		if f.requests() != 1 || len(m.stored()) != 0 {
			t.Errorf("got %d requests, %d stored after the gate opened, want 1, 0", f.requests(), len(m.stored()))
		}
	})
}

func TestOutcomeDecision(t *testing.T) {
	for o, want := range map[Outcome]Decision{
		Returned: Requeue, Processed: Ack, Duplicate: Ack, Parked: Ack, Deferred: Ack, Rejected: Reject,
		Outcome(200): Requeue,
	} {
		if got := o.Decision(); got != want {
			t.Errorf("%v: got %v, want %v", o, got, want)
		}
	}
}

func TestBackoffIsBounded(t *testing.T) {
	for tries := range 200 {
		if got := backoff(500*time.Millisecond, 30*time.Second, tries); got <= 0 || got > 30*time.Second {
			t.Fatalf("try %d: got %v", tries, got)
		}
	}
}
