package inbox

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// due is a stored message that is due now.
func due(id string) *ParkedMessage {
	return &ParkedMessage{
		ID: id + "@1", Consumer: "billing", State: StateDeferred, Due: time.Now(),
		Message: Message{Properties: Properties{MessageID: id}, Body: []byte("{}")},
	}
}

// runDue runs the take-up until the test has slept for d.
func runDue(t *testing.T, p *Processor, gate *Gate, d time.Duration) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- p.RunDue(ctx, gate, 4) }()
	time.Sleep(d)
	stop()
	<-done
}

// A message that takes the handler down shuts the gate each time: it must come
// to its end all the same.
func TestTakenUpAttemptsSurviveAGateThatShuts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, gate := newMemory(), NewGate()
		m.shelf["a@1"] = due("a")
		f := &answers{list: []Answer{{Verdict: NoAnswer, Cut: true, Err: errors.New("cut")}}, before: func() {
			gate.Shut(HindranceHandler, "it died")
			time.AfterFunc(10*time.Second, func() { gate.Open(HindranceHandler) })
		}}
		runDue(t, newProcessor(m, f), gate, time.Hour)
		stored := m.stored()
		if len(stored) != 1 || stored[0].State != StateParked || f.requests() != 3 {
			t.Errorf("got %d requests and %+v, want 3 and the message parked", f.requests(), stored)
		}
	})
}

// failsOnce is a shelf whose first writes fail.
type failsOnce struct {
	*memory
	putBacks int
}

func (s *failsOnce) PutBack(ctx context.Context, id string, due time.Time) error {
	if s.putBacks++; s.putBacks < 3 {
		return errors.New("disk I/O error")
	}
	return s.memory.PutBack(ctx, id, due)
}

func TestPuttingBackIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, gate := newMemory(), NewGate()
		m.shelf["a@1"] = due("a")
		f := &answers{list: []Answer{ok200}}
		p := newProcessor(m, f)
		s := &failsOnce{memory: m}
		p.Shelf = s
		m.setFail(errors.New("away")) // claims fail
		go func() {
			time.Sleep(3 * time.Second)
			gate.Shut(HindranceStore, "away")
			m.setFail(nil)
			time.Sleep(time.Minute)
			gate.Open(HindranceStore)
		}()
		runDue(t, p, gate, 10*time.Minute)
		if f.requests() != 1 || len(m.stored()) != 0 {
			t.Errorf("got %d requests, %d stored after %d tries to put back, want 1, 0", f.requests(), len(m.stored()), s.putBacks)
		}
	})
}

// Rejecting means to let the broker decide; it has nothing to do with a message
// that only the store has.
func TestAStoredMessageIsNotRejected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		m.shelf["1"] = &ParkedMessage{ID: "1", Consumer: "billing", State: StateDeferred, Due: time.Now()}
		p := newProcessor(m, &answers{list: []Answer{ok200}})
		p.MissingID = RejectMissingID
		runDue(t, p, NewGate(), time.Hour)
		if s := m.stored(); len(s) != 1 || s[0].State != StateParked || s[0].Reason != MissingID {
			t.Errorf("got %+v, want it parked again", s)
		}
	})
}

// elsewhere is a parker that keeps messages outside of the store, or, where they
// are too large for that, in it.
type elsewhere struct {
	shelf    *memory
	tooLarge bool
	kept     int
}

func (e *elsewhere) Park(ctx context.Context, m *ParkedMessage) error {
	if e.tooLarge {
		return e.shelf.Park(ctx, m)
	}
	e.kept++
	m.ID = ""
	return nil
}

func TestAStoredMessageGoesOnlyWhereItIsKeptElsewhere(t *testing.T) {
	for _, tooLarge := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			m := newMemory()
			m.shelf["a@1"] = due("a")
			p := newProcessor(m, &answers{list: []Answer{{Verdict: Refused, Status: 422, Err: errors.New("422")}}})
			e := &elsewhere{shelf: m, tooLarge: tooLarge}
			p.Parker = e
			runDue(t, p, NewGate(), time.Minute)
			if got := e.kept + len(m.stored()); got != 1 {
				t.Errorf("too large %t: got %d copies, want 1", tooLarge, got)
			}
		})
	}
}

// shutsMeanwhile is a shelf whose gate shuts while messages are being taken.
type shutsMeanwhile struct {
	*memory
	gate *Gate
}

func (s *shutsMeanwhile) TakeDue(ctx context.Context, consumer string, n int) ([]*ParkedMessage, error) {
	due, err := s.memory.TakeDue(ctx, consumer, n)
	s.gate.Shut(HindranceDraining, "drain")
	return due, err
}

func TestNothingIsForwardedOnceTheGateIsShut(t *testing.T) {
	for range 50 {
		synctest.Test(t, func(t *testing.T) {
			m, gate := newMemory(), NewGate()
			m.shelf["a@1"] = due("a")
			f := &answers{list: []Answer{ok200}}
			p := newProcessor(m, f)
			p.Shelf = &shutsMeanwhile{m, gate}
			runDue(t, p, gate, time.Minute)
			if f.requests() != 0 || p.TakingUp() != 0 || len(m.stored()) != 1 {
				t.Fatalf("got %d requests, %d in work, %d stored, want 0, 0, 1", f.requests(), p.TakingUp(), len(m.stored()))
			}
		})
	}
}

func TestWhatIsTakenUpCountsUntilItIsSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		m.shelf["1"] = &ParkedMessage{ID: "1", Consumer: "billing", State: StateDeferred, Due: time.Now()}
		f := &answers{list: []Answer{ok200}, took: time.Minute}
		p := newProcessor(m, f)
		p.MissingID = ForwardMissingID
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- p.RunDue(ctx, NewGate(), 4) }()
		time.Sleep(10 * time.Second)
		if p.TakingUp() != 1 {
			t.Errorf("got %d in work, want 1", p.TakingUp())
		}
		stop()
		<-done
		if p.TakingUp() != 0 || len(m.stored()) != 0 {
			t.Errorf("got %d in work, %d stored, want none", p.TakingUp(), len(m.stored()))
		}
	})
}
