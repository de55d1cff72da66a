package consumer

import (
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
)

// ledger is what a broker does with one channel's tags.
type ledger struct {
	t       *testing.T
	unacked map[uint64]*held
	settled map[uint64]string
}

// apply plays a batch as the broker would and fails on anything that the
// broker would answer with 406, or that removes what was not settled.
func (l *ledger) apply(b batch) {
	take := func(tag uint64, how string) {
		h, ok := l.unacked[tag]
		if !ok {
			l.t.Errorf("%s of tag %d, which is not unacked: a 406", how, tag)
			return
		}
		if !h.settled {
			l.t.Errorf("%s of tag %d, which its handler still holds", how, tag)
		} else if got := decisionWord(h.result.Outcome.Decision()); got != how {
			l.t.Errorf("tag %d: %s, want %s", tag, how, got)
		}
		delete(l.unacked, tag)
		l.settled[tag] = how
	}
	for _, h := range b.returns {
		take(h.tag, decisionWord(h.result.Outcome.Decision()))
	}
	if b.upTo > 0 {
		if _, ok := l.unacked[b.upTo]; !ok {
			l.t.Errorf("ack multiple up to tag %d, which is not unacked: a 406", b.upTo)
		}
		for tag := range l.unacked {
			if tag <= b.upTo {
				take(tag, "ack")
			}
		}
	}
	for _, h := range b.strays {
		take(h.tag, "ack")
	}
}

func TestMultipleAckCoversOnlyWhatIsSettled(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 7))
		prefetch := 1 + rng.IntN(40)
		b := newBook(prefetch)
		l := &ledger{t: t, unacked: map[uint64]*held{}, settled: map[uint64]string{}}
		var inHand []*held
		total := uint64(300)
		for next := uint64(1); next <= total || len(l.unacked) > 0; {
			switch {
			case next <= total && len(l.unacked) < prefetch && rng.IntN(2) == 0:
				h := &held{tag: next}
				next++
				b.add(h)
				l.unacked[h.tag] = h
				inHand = append(inHand, h)
			case len(inHand) > 0 && rng.IntN(3) > 0:
				// Mostly the younger ones: an old one keeps the watermark down.
				i := rng.IntN(len(inHand))
				i = max(i, rng.IntN(len(inHand)))
				h := inHand[i]
				inHand = append(inHand[:i], inHand[i+1:]...)
				b.settle(h, inbox.Result{Outcome: inbox.Outcomes[rng.IntN(len(inbox.Outcomes))]})
				if b.settle(h, inbox.Result{Outcome: inbox.Processed}) {
					t.Error("settled twice")
				}
			default:
				out, _, _ := b.take(time.Now().Add(time.Duration(rng.IntN(2)) * time.Second))
				l.apply(out)
			}
		}
		if len(l.settled) != int(total) {
			t.Errorf("seed %d: settled = %d, want %d", seed, len(l.settled), total)
		}
	}
}

func TestMultipleAckSparesReturnsThatWait(t *testing.T) {
	t.Parallel()
	b := newBook(16)
	l := &ledger{t: t, unacked: map[uint64]*held{}, settled: map[uint64]string{}}
	var all []*held
	for tag := uint64(1); tag <= 4; tag++ {
		h := &held{tag: tag}
		b.add(h)
		l.unacked[tag] = h
		all = append(all, h)
	}
	b.hold()
	b.settle(all[0], inbox.Result{Outcome: inbox.Processed})
	b.settle(all[1], inbox.Result{Outcome: inbox.Returned})
	b.settle(all[2], inbox.Result{Outcome: inbox.Processed})
	b.settle(all[3], inbox.Result{Outcome: inbox.Processed})
	for range 2 {
		out, _, _ := b.take(time.Now().Add(time.Second))
		l.apply(out)
		b.finish(false)
	}
	if got := l.settled[2]; got != "requeue" {
		t.Errorf("the returned delivery was told %q, want requeue", got)
	}
}

func TestConcurrentSettlementsReachTheBrokerOnceEach(t *testing.T) {
	t.Parallel()
	const prefetch, total = 32, 20000
	b := newBook(prefetch)
	credit := make(chan struct{}, prefetch)
	told := make(map[uint64]int)
	var high uint64
	var settler, handlers sync.WaitGroup
	settler.Go(func() {
		for {
			out, wait, done := b.take(time.Now())
			for _, list := range [][]*held{out.returns, out.covered, out.strays} {
				for _, h := range list {
					told[h.tag]++
					<-credit
				}
			}
			if out.upTo > 0 {
				if out.upTo < high {
					t.Errorf("watermark fell from %d to %d", high, out.upTo)
				}
				high = out.upTo
			}
			if done {
				return
			}
			if wait == 0 {
				wait = time.Hour
			}
			select {
			case <-b.wake:
			case <-time.After(wait):
			}
		}
	})
	for tag := uint64(1); tag <= total; tag++ {
		credit <- struct{}{}
		h := &held{tag: tag}
		b.add(h)
		handlers.Go(func() {
			if tag%97 == 0 {
				time.Sleep(time.Millisecond)
			}
			b.settle(h, inbox.Result{Outcome: inbox.Outcomes[tag%3]})
		})
	}
	handlers.Wait()
	b.finish(false)
	settler.Wait()
	if len(told) != total {
		t.Errorf("told = %d, want %d", len(told), total)
	}
	for tag, n := range told {
		if n != 1 {
			t.Errorf("tag %d told %d times, want once", tag, n)
		}
	}
}

func TestAckWaitsForCompanyOnlyWhileOthersAreInHand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBook(16)
		one, two, three := &held{tag: 1}, &held{tag: 2}, &held{tag: 3}
		ok := inbox.Result{Outcome: inbox.Processed}

		b.add(one)
		b.settle(one, ok)
		if out, _, _ := b.take(time.Now()); out.upTo != 1 {
			t.Errorf("idle: ack = %d, want 1 at once", out.upTo)
		}

		b.add(two)
		b.add(three)
		b.settle(three, ok)
		out, wait, _ := b.take(time.Now())
		if !out.empty() || wait != ackWait {
			t.Errorf("behind a slow message: %d acks, wait %s, want none yet, wait %s", len(out.strays), wait, ackWait)
		}
		time.Sleep(wait)
		if out, wait, _ := b.take(time.Now()); !out.empty() || wait != ackWait {
			t.Errorf("behind it still: %d acks, wait %s, want none before %s", len(out.strays), wait, strayWait)
		}
		time.Sleep(strayWait)
		if out, _, _ := b.take(time.Now()); len(out.strays) != 1 || out.upTo != 0 {
			t.Errorf("after the wait: %d single acks, multiple up to %d, want 1 and none", len(out.strays), out.upTo)
		}
	})
}

func TestSlowMessageDoesNotHoldBackAcks(t *testing.T) {
	t.Parallel()
	const prefetch = 16
	b := newBook(prefetch)
	b.add(&held{tag: 1}) // slow
	waiting := 0
	for tag := uint64(2); tag < 1000; tag++ {
		h := &held{tag: tag}
		b.add(h)
		b.settle(h, inbox.Result{Outcome: inbox.Processed})
		waiting++
		out, _, _ := b.take(time.Now())
		waiting -= len(out.strays)
		if waiting > prefetch/2 {
			t.Fatalf("acks held back = %d, want at most %d", waiting, prefetch/2)
		}
	}
}

// Requests that end out of order are acked together all the same.
func TestAcksOutOfOrderGoTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const prefetch = 1024
		b := newBook(prefetch)
		var open []*held
		frames, told, tag := 0, 0, uint64(0)
		for range 5000 {
			for len(open) < 64 {
				tag++
				h := &held{tag: tag}
				b.add(h)
				open = append(open, h)
			}
			i := rand.IntN(len(open))
			if rand.IntN(4) == 0 {
				i = 0
			}
			h := open[i]
			open = append(open[:i], open[i+1:]...)
			b.settle(h, inbox.Result{Outcome: inbox.Processed})
			time.Sleep(50 * time.Microsecond)
			out, _, _ := b.take(time.Now())
			told += len(out.covered) + len(out.strays)
			frames += len(out.strays)
			if out.upTo > 0 {
				frames++
			}
		}
		if told < 4000 || frames > told/8 {
			t.Errorf("got %d ack frames for %d acks, want few", frames, told)
		}
	})
}

func BenchmarkSettle(b *testing.B) {
	book := newBook(1024)
	done := make(chan struct{})
	go func() {
		for range book.wake {
			book.take(time.Now().Add(time.Second))
		}
		close(done)
	}()
	b.ReportAllocs()
	for b.Loop() {
		h := &held{tag: 1}
		book.add(h)
		book.settle(h, inbox.Result{Outcome: inbox.Processed})
	}
	close(book.wake)
	<-done
}

func TestNothingIsToldAfterTheSessionIsLost(t *testing.T) {
	t.Parallel()
	b := newBook(4)
	one, two := &held{tag: 1}, &held{tag: 2}
	b.add(one)
	b.add(two)
	b.settle(one, inbox.Result{Outcome: inbox.Processed})
	if left := b.kill(); len(left) != 1 || left[0] != one {
		t.Errorf("left = %v, want the first delivery", left)
	}
	if b.settle(two, inbox.Result{Outcome: inbox.Processed}) {
		t.Error("settle = true, want false: the session is gone")
	}
	if out, _, done := b.take(time.Now()); !out.empty() || !done {
		t.Errorf("take = %v, %t, want nothing and the end", out, done)
	}
}
