package main

import (
	"bytes"
	"encoding/binary"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/inboxd/inboxd/internal/config"
)

func TestScheduleHoldsEveryMessageAndTheShareOfDuplicates(t *testing.T) {
	t.Parallel()
	for _, total := range []int{1, 10, 1000, 55_555} {
		order, unique := schedule(total, 0.1)
		if got, want := unique, total-total/10; got != want {
			t.Errorf("schedule(%d): %d different messages, want %d", total, got, want)
		}
		if len(order) != total {
			t.Fatalf("schedule(%d) has %d messages", total, len(order))
		}
		next := 0
		for _, n := range order {
			switch {
			case n == next:
				next++
			case n > next || n < 0:
				t.Fatalf("schedule(%d): message %d follows %d: a duplicate before its original", total, n, next-1)
			}
		}
		if next != unique {
			t.Errorf("schedule(%d): %d different messages appear, want %d", total, next, unique)
		}
	}
}

func TestMessageIDsAreUUIDsInRandomOrder(t *testing.T) {
	t.Parallel()
	var ids []string
	for n := range 1000 {
		id := messageID(n)
		if got, ok := messageNumber([]byte(id)); !ok || got != n {
			t.Fatalf("messageNumber(%s) = %d, %v, want %d", id, got, ok, n)
		}
		ids = append(ids, id)
	}
	if slices.IsSorted(ids) {
		t.Error("the IDs are sorted, want the random order of UUIDs")
	}
	for _, bad := range []string{"", "x", "order-1", messageID(1) + "0", strings.Repeat("-", 36)} {
		if n, ok := messageNumber([]byte(bad)); ok {
			t.Errorf("messageNumber(%q) = %d, want none", bad, n)
		}
	}
}

func TestBodiesHaveTheirSizeAndAreTheSameAgain(t *testing.T) {
	t.Parallel()
	for _, size := range []int{200, 1024, 64 << 10} {
		if got := len(body(7, size)); got != size {
			t.Errorf("body of %d bytes, want %d", got, size)
		}
	}
	if !bytes.Equal(body(7, 1024), body(7, 1024)) || bytes.Equal(body(7, 1024), body(8, 1024)) {
		t.Error("the same message must have the same body, another one another")
	}
	at := time.Unix(1700000000, 123456789)
	if got, ok := publishedAt(stampedBody(at, 7, 1024)); !ok || got != at.UnixNano() {
		t.Errorf("publishedAt = %d, %v, want %d", got, ok, at.UnixNano())
	}
	if _, ok := publishedAt(body(7, 1024)); ok {
		t.Error("a body without a stamp has a time")
	}
}

func TestWatermarkNeverPassesWhatIsNotSettled(t *testing.T) {
	t.Parallel()
	var w watermark
	for _, step := range []struct{ tag, want uint64 }{{2, 0}, {3, 0}, {1, 3}, {5, 3}, {4, 5}, {6, 6}} {
		if w.settle(step.tag); w.low != step.want {
			t.Errorf("after %d the watermark is %d, want %d", step.tag, w.low, step.want)
		}
	}
}

func TestSpread(t *testing.T) {
	t.Parallel()
	if got, want := spreadOf([]float64{3, 1, 2}), (spread{2, 1, 3}); got != want {
		t.Errorf("spreadOf = %v, want %v", got, want)
	}
	if got, want := spreadOf([]float64{4, 1}), (spread{2.5, 1, 4}); got != want {
		t.Errorf("spreadOf = %v, want %v", got, want)
	}
	if got := spreadOf(nil); got != (spread{}) {
		t.Errorf("spreadOf(nil) = %v, want zeros", got)
	}
}

func TestRatiosAreWithinARoundAndInvalidRunsCountForNothing(t *testing.T) {
	t.Parallel()
	lines := summarise([]result{
		{Program: yardstick, Round: 0, Rate: 100},
		{Program: "x", Round: 0, Rate: 150},
		{Program: yardstick, Round: 1, Rate: 200},
		{Program: "x", Round: 1, Rate: 200},
		{Program: yardstick, Round: 2, Rate: 50, Invalid: "lost one"},
		{Program: "x", Round: 2, Rate: 400},
	})
	if len(lines) != 2 || lines[1].program != "x" {
		t.Fatalf("summarise gives %+v, want a line for each program", lines)
	}
	if got, want := lines[1].ratio, (spread{1.25, 1, 1.5}); got != want {
		t.Errorf("ratio is %v, want %v", got, want)
	}
	if lines[0].runs != 2 || lines[0].invalid != 1 {
		t.Errorf("%d runs and %d invalid, want 2 and 1", lines[0].runs, lines[0].invalid)
	}
}

func TestPercentiles(t *testing.T) {
	t.Parallel()
	var ns []int64
	for i := range 1000 {
		ns = append(ns, int64(1000-i)*1e6)
	}
	if got, want := percentilesOf(ns), (percentiles{501, 991, 1000, 1000, 1000}); got != want {
		t.Errorf("percentilesOf = %+v, want %+v", got, want)
	}
}

// The product refuses unknown keys, so this also notices a renamed one.
func TestConfigurationIsOneThatInboxdTakes(t *testing.T) {
	t.Parallel()
	for _, s := range []scenario{{Concurrency: 64, Prefetch: 1000}, {Defaults: true}} {
		for _, queues := range [][]string{{"a"}, {"a", "b", "c"}} {
			text := inboxdConfig(s, task{
				amqpURL: "amqp://guest:guest@127.0.0.1:5672/", target: "http://127.0.0.1:1/messages",
				storeURL: "sqlite:/tmp/x.db", queues: queues, metrics: "127.0.0.1:9000", consumer: "bench",
			}, "  leases: never\n", "")
			c, err := config.Parse(strings.NewReader(text), func(string) (string, bool) { return "", false })
			if err != nil {
				t.Fatalf("%v\n%s", err, text)
			}
			if len(c.Consumers) != len(queues) {
				t.Errorf("%d consumers, want %d", len(c.Consumers), len(queues))
			}
		}
	}
}

func TestExternalProgramsGetTheRunsOwnValues(t *testing.T) {
	t.Parallel()
	p, err := externalProgram("mine-dedup=go run ./mine {queue} {url} {concurrency}")
	if err != nil {
		t.Fatal(err)
	}
	_, args, err := p.args(&bench{servers: &servers{}}, scenario{Concurrency: 8}, task{queues: []string{"q"}, target: "http://h"})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"run", "./mine", "q", "http://h", "8"}; !slices.Equal(args, want) {
		t.Errorf("arguments are %q, want %q", args, want)
	}
	if !p.dedups || p.anonymous {
		t.Errorf("dedups %v, anonymous %v, want true, false", p.dedups, p.anonymous)
	}
	if _, err := externalProgram("nothing"); err == nil {
		t.Error("a program without a command gave no error")
	}
}

func TestTapMatchesAcknowledgementsToDeliveries(t *testing.T) {
	t.Parallel()
	line := &tap{}
	w := &wire{tap: line, channels: map[uint16]*tappedChannel{}}
	for tag := uint64(1); tag <= 3; tag++ {
		w.fromServer(frameMethod, 1, deliver(tag))
		w.fromServer(frameBody, 1, stampedBody(time.Now(), int(tag), 100))
	}
	w.fromClient(frameMethod, 2, ack(1, false)) // another channel
	w.fromClient(frameMethod, 1, ack(3, false))
	if got := len(line.taken()); got != 1 {
		t.Errorf("%d acknowledged, want 1", got)
	}
	w.fromClient(frameMethod, 1, ack(3, true))
	if got := len(line.taken()); got != 3 {
		t.Errorf("%d acknowledged after a multiple, want 3", got)
	}
}

func deliver(tag uint64) []byte {
	b := binary.BigEndian.AppendUint16(nil, classBasic)
	b = binary.BigEndian.AppendUint16(b, basicDeliver)
	b = append(b, 3, 'c', 't', 'g')
	return append(binary.BigEndian.AppendUint64(b, tag), 0)
}

func ack(tag uint64, multiple bool) []byte {
	b := binary.BigEndian.AppendUint16(nil, classBasic)
	b = binary.BigEndian.AppendUint16(b, basicAck)
	b = binary.BigEndian.AppendUint64(b, tag)
	if multiple {
		return append(b, 1)
	}
	return append(b, 0)
}

func TestListenerIsFoundByItsAddress(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	pid := listenerPID(ln.Addr().String())
	if _, rss := memory(pid); rss == 0 {
		t.Errorf("process %d has no memory, want this process", pid)
	}
	if got := listenerPID("127.0.0.1:1"); got != 0 {
		t.Errorf("process %d listens on port 1, want none", got)
	}
}

func TestTableIsMarkdown(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	printTable(&out, [][]string{{"program", "messages/s"}, {"bare", "1,234"}})
	want := "| program | messages/s |\n|---------|-----------:|\n| bare    |      1,234 |\n"
	if got := out.String(); got != want {
		t.Errorf("table is\n%swant\n%s", got, want)
	}
}
