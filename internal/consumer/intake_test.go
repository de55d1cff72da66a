package consumer

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/inboxd/inboxd/internal/inbox"
)

func testIntake(limit int64) *intake {
	return newIntake(&inHand{limit: limit, metrics: newMetrics(nil, "test")})
}

// TestStrippedBodiesLeaveTheStreamWhole: a body without room disappears, its
// header says so, and everything around it stays as it was, however it is cut.
func TestStrippedBodiesLeaveTheStreamWhole(t *testing.T) {
	t.Parallel()
	const limit = 100_000
	rng := rand.New(rand.NewPCG(3, 4))
	var in, want []byte
	var used int64
	stripped := map[uint64]int64{}
	for tag := uint64(1); tag <= 200; tag++ {
		size := rng.IntN(40_000)
		entries := table("n", 'S', longstr("v"))
		if tag%7 == 0 {
			entries = table("n", 'L', i64(1), "z", 'Z', []byte{1}) // is rebuilt
		}
		method := frame(frameMethod, 1, bytes.Repeat([]byte{1}, 20+rng.IntN(60)))
		header := frame(frameHeader, 1, contentHeader(entries, "id", size))
		kept := size
		if used > 0 && used+int64(size) > limit {
			stripped[tag], kept = int64(size), 0
		} else {
			used += int64(size)
		}
		out, err := io.ReadAll(newFilter(bytes.NewReader(frame(frameHeader, 1, contentHeader(entries, "id", kept))), nil))
		if err != nil {
			t.Fatal(err)
		}
		var body []byte
		for rest := size; rest > 0; {
			n := min(rest, 1+rng.IntN(17_000))
			body = append(body, frame(frameBody, 1, bytes.Repeat([]byte{frameHeader}, n))...)
			rest -= n
		}
		beat := frame(frameHeartbeat, 0, nil)
		in = slices.Concat(in, method, header, body, beat)
		if kept == 0 {
			body = nil
		}
		want = slices.Concat(want, method, out, body, beat)
	}
	for name, r := range map[string]io.Reader{
		"whole":          bytes.NewReader(in),
		"byte by byte":   iotest.OneByteReader(bytes.NewReader(in)),
		"half":           iotest.HalfReader(bytes.NewReader(in)),
		"data and error": iotest.DataErrReader(bytes.NewReader(in)),
	} {
		f := newFilter(r, nil)
		f.intake = testIntake(limit)
		f.intake.setStripping(true)
		var read io.Reader = f
		if name != "whole" {
			read = iotest.OneByteReader(f)
		}
		out, err := io.ReadAll(read)
		if err != nil || !bytes.Equal(out, want) {
			t.Errorf("%s: %d bytes, %v, differ from the %d wanted", name, len(out), err, len(want))
		}
		if got := f.intake.hand.bytes(); got != used {
			t.Errorf("%s: in hand: got %d, want %d", name, got, used)
		}
		for tag, size := range stripped {
			if _, got, ok := f.intake.claim(tag, 0); !ok || got != size {
				t.Errorf("%s: tag %d: stripped %t with %d bytes, want true, %d", name, tag, ok, got, size)
			}
		}
	}
}

// TestHoldingBackIsNotThePeersSilence: the library's deadline for the next sign of
// life does not run while we do not listen, and runs again afterwards.
func TestHoldingBackIsNotThePeersSilence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer theirs.Close()
		l := newLink(ours, ours, time.Second, nil)
		in := testIntake(10)
		l.count(in)
		defer l.sever()
		in.hand.change(8) // somebody has something in hand
		header := frame(frameHeader, 1, contentHeader(nil, "id", 5))
		body := frame(frameBody, 1, []byte("hello"))
		go theirs.Write(header)
		if err := l.SetReadDeadline(time.Now().Add(3 * time.Second)); err != nil {
			t.Fatal(err)
		}
		go func() {
			time.Sleep(time.Minute)
			in.hand.change(-8)
			time.Sleep(2 * time.Second)
			_, _ = theirs.Write(body)
		}()
		begun := time.Now()
		got := make([]byte, len(header)+len(body))
		if _, err := io.ReadFull(l, got); err != nil || !bytes.Equal(got, slices.Concat(header, body)) {
			t.Fatalf("after %s: read %q, %v, want header and body", time.Since(begun), got, err)
		}
		if held := time.Since(begun); held != 62*time.Second {
			t.Errorf("read after %s, want 62s", held)
		}
		begun = time.Now()
		if _, err := l.Read(got); err == nil {
			t.Error("a peer that is silent: got no error, want one")
		}
		if took := time.Since(begun); took > 3*time.Second {
			t.Errorf("noticed after %s, want at most 3s", took)
		}
	})
}

// TestAMessageAlwaysGetsThrough: however large it is, where nothing else is in hand;
// and a link that is severed lets nobody wait.
func TestAMessageAlwaysGetsThrough(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		in := testIntake(10)
		if got := in.wait(1000); got != bodyPasses {
			t.Errorf("alone: got %d, want %d", got, bodyPasses)
		}
		ended := make(chan ruling, 1)
		go func() { ended <- in.wait(1) }()
		synctest.Wait()
		if !in.isHeld() {
			t.Error("beside it: not held back, want held back")
		}
		in.close()
		<-ended
		if got := in.hand.bytes(); got != 0 {
			t.Errorf("in hand after the end: got %d, want 0", got)
		}
		counted, _, _ := in.claim(1, 1000) // it comes out of the library's buffer yet
		if in.hand.change(-counted); in.hand.bytes() != 0 {
			t.Errorf("in hand after it was settled: got %d, want 0", in.hand.bytes())
		}
	})
}

// TestAMissingDeliveryEndsTheSession: the library may drop one, for a consumer that
// was cancelled; an ack with multiple for a later one would cover it, and it would
// never be processed.
func TestAMissingDeliveryEndsTheSession(t *testing.T) {
	t.Parallel()
	var handled sync.Map
	c := New(Options{Queue: "q"}, func(_ context.Context, d *inbox.Delivery) inbox.Result {
		handled.Store(d.Properties.MessageID, nil)
		return inbox.Result{Outcome: inbox.Processed}
	}, new(inbox.Gate), slog.New(slog.DiscardHandler), nil)
	defer c.workers.stop()
	s := &session{c: c, book: newBook(8), lost: make(chan struct{})}
	s.flow, s.intake, s.stirred = c.flow, newIntake(&c.hand), make(chan struct{}, 1)
	s.ctx, s.stop = context.WithCancel(t.Context())
	deliveries := make(chan amqp.Delivery, 3)
	for _, tag := range []uint64{1, 3, 4} {
		deliveries <- amqp.Delivery{DeliveryTag: tag, MessageId: fmt.Sprint(tag)}
	}
	close(deliveries)
	s.pump(deliveries)
	c.handlers.Wait()
	if s.err == nil || !strings.Contains(s.err.Error(), "missing") {
		t.Errorf("got %v, want the session to be lost for the missing delivery", s.err)
	}
	for _, id := range []string{"3", "4"} {
		if _, ok := handled.Load(id); ok {
			t.Errorf("delivery %s was handled, want nothing to come after the gap", id)
		}
	}
	if s.book.tag != 1 {
		t.Errorf("the last delivery in the book: got %d, want 1", s.book.tag)
	}
}
