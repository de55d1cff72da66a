package consumer

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func i64(n int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }

// nested returns a value of n tables one in the other, without its type byte.
func nested(n int) []byte {
	if n == 1 {
		return longstr("")
	}
	return longstr(string(table("t", 'F', nested(n-1))))
}

func many(n int) []byte {
	var b []byte
	for i := range n {
		b = append(b, table(fmt.Sprintf("k%d", i), 'V', []byte{})...)
	}
	return b
}

var everyType = table(
	"bool", 't', []byte{1}, "i8", 'b', []byte{0xFF}, "u8", 'B', []byte{0xFF},
	"i16", 's', []byte{0xFF, 0xFE}, "u16", 'u', []byte{0xFF, 0xFE},
	"i32", 'I', u32(1<<31), "u32", 'i', u32(1<<31), "i64", 'l', i64(-5),
	"f", 'f', u32(0x3fc00000), "d", 'd', i64(0x3ff8000000000000),
	"dec", 'D', append([]byte{2}, u32(1234)...), "s", 'S', longstr("x\x00\xff"),
	"time", 'T', i64(1700000000), "bytes", 'x', longstr("\x00\x01"), "nil", 'V', []byte{},
	"array", 'A', longstr("t\x01S\x00\x00\x00\x01aV"), "table", 'F', longstr(string(table("k", 'I', u32(7)))),
)

// filtered returns what comes out for the given header entries.
func filtered(t *testing.T, entries []byte) (stream, header []byte) {
	t.Helper()
	in := frame(frameHeader, 1, contentHeader(entries, "id-1", 3))
	out, err := io.ReadAll(newFilter(bytes.NewReader(in), nil))
	if err != nil {
		t.Fatalf("reading: %v", err)
	}
	_, _, payload, err := readFrame(bytes.NewReader(out))
	if err != nil {
		t.Fatalf("the frame that came out is broken: %v", err)
	}
	return out, payload
}

func TestReadableHeaderTablesPassUnchanged(t *testing.T) {
	t.Parallel()
	for name, entries := range map[string][]byte{
		"empty":        nil,
		"every type":   everyType,
		"32 deep":      table("t", 'F', nested(32)),
		"8192 entries": many(8192),
		"x-death":      table("x-death", 'A', longstr("F"+string(longstr(string(table("count", 'l', i64(3), "time", 'T', i64(1))))))),
	} {
		t.Run(name, func(t *testing.T) {
			in := frame(frameHeader, 1, contentHeader(entries, "id-1", 3))
			if out, _ := filtered(t, entries); !bytes.Equal(out, in) {
				t.Errorf("frame = %q, want %q", out, in)
			}
		})
	}
}

func TestFieldTypesWithAnEquivalentAreRewritten(t *testing.T) {
	t.Parallel()
	in := table("big", 'L', i64(-1<<40), "short", 'U', []byte{0xFF, 0xFE},
		"in", 'F', longstr(string(table("big", 'L', i64(1<<40)))), "list", 'A', append(u32(9), append([]byte{'L'}, i64(9)...)...))
	want := table("big", 'l', i64(-1<<40), "short", 's', []byte{0xFF, 0xFE},
		"in", 'F', longstr(string(table("big", 'l', i64(1<<40)))), "list", 'A', append(u32(9), append([]byte{'l'}, i64(9)...)...))
	_, header := filtered(t, slices.Clone(in))
	if wantHeader := contentHeader(want, "id-1", 3); !bytes.Equal(header, wantHeader) {
		t.Errorf("header = %q, want %q", header, wantHeader)
	}
}

func TestUnreadableEntriesAreReplacedByAMarker(t *testing.T) {
	t.Parallel()
	good := table("first", 'S', longstr("kept"))
	last := table("last", 'I', u32(4))
	for name, tc := range map[string]struct{ in, want []byte }{
		"too deep":         {slices.Concat(good, table("t", 'F', nested(33)), last), slices.Concat(good, last, marker(tooDeep))},
		"unknown type":     {slices.Concat(good, table("t", 'Z', []byte{1, 2}), last), slices.Concat(good, marker(unknownType))},
		"unknown, nested":  {slices.Concat(good, table("t", 'F', longstr(string(table("x", 'Z', []byte{1})))), last), slices.Concat(good, last, marker(unknownType))},
		"value cut short":  {slices.Concat(good, []byte("\x01aI\x00")), slices.Concat(good, marker(cutShort))},
		"name cut short":   {slices.Concat(good, []byte{200, 'a'}), slices.Concat(good, marker(cutShort))},
		"length too large": {slices.Concat(good, []byte("\x01aS\xff\xff\xff\xffabc")), slices.Concat(good, marker(cutShort))},
		"too many":         {many(8193), slices.Concat(many(8186), marker(tooMany))},
		"too many, nested": {slices.Concat(good, table("t", 'F', longstr(string(many(8193))))), slices.Concat(good, marker(tooMany))},
	} {
		t.Run(name, func(t *testing.T) {
			_, header := filtered(t, tc.in)
			if want := contentHeader(tc.want, "id-1", 3); !bytes.Equal(header, want) {
				t.Errorf("header = %.300q, want %.300q", header, want)
			}
		})
	}
}

func TestFilterKeepsTheStreamWholeHoweverItIsCut(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	var in, want []byte
	for i := range 300 {
		var f, g []byte
		switch rng.IntN(5) {
		case 0:
			f = frame(frameMethod, 1, bytes.Repeat([]byte{'L'}, rng.IntN(300)))
		case 1:
			f = frame(frameBody, 1, bytes.Repeat([]byte{frameHeader}, rng.IntN(40000)))
		case 2:
			f = frame(frameHeartbeat, 0, nil)
		case 3:
			f = frame(frameHeader, 1, contentHeader(table("n", 'L', i64(int64(i)), "pad", 'S', longstr(strings.Repeat("x", rng.IntN(30000)))), "m", 1))
			g = bytes.Replace(f, []byte("\x01nL"), []byte("\x01nl"), 1)
		case 4:
			entries := table("z", 'Z', bytes.Repeat([]byte{1}, rng.IntN(20000)))
			f = frame(frameHeader, 1, contentHeader(entries, "m", 1))
			g = frame(frameHeader, 1, contentHeader(marker(unknownType), "m", 1))
		}
		if g == nil {
			g = f
		}
		in, want = append(in, f...), append(want, g...)
	}
	for name, r := range map[string]io.Reader{
		"whole":          bytes.NewReader(in),
		"byte by byte":   iotest.OneByteReader(bytes.NewReader(in)),
		"half":           iotest.HalfReader(bytes.NewReader(in)),
		"data and error": iotest.DataErrReader(bytes.NewReader(in)),
	} {
		for _, size := range []int{1, 7, 4096, 1 << 20} {
			if size == 1 && name != "whole" {
				continue
			}
			f := newFilter(r, nil)
			var out []byte
			p := make([]byte, size)
			for {
				n, err := f.Read(p)
				out = append(out, p[:n]...)
				if err != nil {
					break
				}
			}
			if !bytes.Equal(out, want) {
				t.Errorf("%s, read by %d: %d bytes differ from the %d wanted", name, size, len(out), len(want))
			}
			if s, ok := r.(io.Seeker); ok {
				s.Seek(0, io.SeekStart)
			} else {
				break
			}
		}
	}
}

func TestWhatIsNotAMQPPassesUnchanged(t *testing.T) {
	t.Parallel()
	for _, in := range []string{"AMQP\x00\x00\x09\x01", "HTTP/1.1 400 Bad Request\r\n\r\n", "\x02", ""} {
		out, err := io.ReadAll(newFilter(strings.NewReader(in), nil))
		if err != nil || string(out) != in {
			t.Errorf("out = %q, %v, want %q", out, err, in)
		}
	}
}

func BenchmarkFilterDelivery(b *testing.B) {
	h := contentHeader(table("n", 'S', longstr("some value"), "m", 'I', u32(3), "x-delivery-count", 'l', i64(1)), "id-1", 1024)
	in := slices.Concat(frame(frameMethod, 1, make([]byte, 60)), frame(frameHeader, 1, h), frame(frameBody, 1, make([]byte, 1024)))
	src := &repeat{b: in}
	f := newFilter(src, nil)
	p := make([]byte, 4096)
	b.SetBytes(int64(len(in)))
	b.ReportAllocs()
	for n := 0; n < b.N*len(in); {
		m, err := f.Read(p)
		if err != nil {
			b.Fatal(err)
		}
		n += m
	}
}

type repeat struct {
	b  []byte
	at int
}

func (r *repeat) Read(p []byte) (n int, err error) {
	for n < len(p) {
		m := copy(p[n:], r.b[r.at:])
		n += m
		r.at = (r.at + m) % len(r.b)
	}
	return n, nil
}

// reader is a connection to a fake broker through the filter, for messages that
// a real broker would not deliver.
type reader struct {
	fake       *fakeConn
	deliveries <-chan amqp.Delivery
	closed     chan *amqp.Error
}

func dialFake(t testing.TB) *reader {
	t.Helper()
	f := startFakeBroker(t)
	d := dialer{broker: Broker{Credentials: URLs(f.url())}.withDefaults(), name: "test"}
	c, err := d.dial(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.link.sever)
	r := &reader{closed: c.NotifyClose(make(chan *amqp.Error, 1))}
	ch, err := c.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if r.deliveries, err = ch.Consume("q", "tag", false, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	r.fake = <-f.consumed
	return r
}

func (r *reader) read(t testing.TB, header []byte, body string) amqp.Delivery {
	t.Helper()
	if err := r.fake.deliver(header, body); err != nil {
		t.Fatal(err)
	}
	select {
	case d := <-r.deliveries:
		return d
	case err := <-r.closed:
		t.Fatalf("the library closed the connection: %v", err)
	case <-time.After(5 * time.Second):
		t.Fatal("no delivery")
	}
	panic("unreachable")
}

func TestTheLibraryReadsWhatTheFilterRepaired(t *testing.T) {
	t.Parallel()
	r := dialFake(t)
	for name, tc := range map[string]struct {
		in   []byte
		want amqp.Table
	}{
		"py-amqp's 64-bit integer": {table("big", 'L', i64(1<<40), "s", 'S', longstr("x")), amqp.Table{"big": int64(1 << 40), "s": "x"}},
		"too deep":                 {table("s", 'S', longstr("x"), "t", 'F', nested(40)), amqp.Table{"s": "x", UnreadableHeaders: tooDeep}},
		"garbage":                  {[]byte{9, 9, 9}, amqp.Table{UnreadableHeaders: cutShort}},
	} {
		d := r.read(t, contentHeader(tc.in, "id-1", 4), "body")
		if !reflect.DeepEqual(d.Headers, tc.want) || d.MessageId != "id-1" || string(d.Body) != "body" {
			t.Errorf("%s: headers %v, ID %q, body %q, want %v, id-1, body", name, d.Headers, d.MessageId, d.Body, tc.want)
		}
	}
}

// FuzzHeaderTable: whatever is in a header table, the library reads what comes
// out of the filter, and a table that was fine comes out as it went in.
func FuzzHeaderTable(f *testing.F) {
	f.Add([]byte(nil), "id")
	f.Add(slices.Clone(everyType), "id")
	f.Add(table("big", 'L', i64(1), "t", 'F', nested(33)), "id")
	f.Add([]byte("\x01aA\x00\x00\x00\x01I\x01bZ"), "")
	f.Add(table("a", 'A', longstr("F\x00\x00\x00\x02\x01a")), "")
	r := dialFake(f)
	f.Fuzz(func(t *testing.T, entries []byte, id string) {
		if len(id) > 255 || len(entries) > 100000 {
			return
		}
		header := contentHeader(entries, id, 0)
		in := frame(frameHeader, 1, header)
		s := scanner{}
		good := s.table(slices.Clone(entries), 0) == "" && !s.patched
		out, err := io.ReadAll(newFilter(bytes.NewReader(slices.Clone(in)), nil))
		if err != nil {
			t.Fatal(err)
		}
		if good != bytes.Equal(in, out) {
			t.Fatalf("readable: %t; in %q, out %q", good, in, out)
		}
		if d := r.read(t, header, ""); d.MessageId != id {
			t.Fatalf("message ID = %q, want %q", d.MessageId, id)
		}
	})
}

// FuzzContentHeader: any payload, and any cut of the stream, gives whole frames.
func FuzzContentHeader(f *testing.F) {
	f.Add(contentHeader(everyType, "id", 0))
	f.Add([]byte{0, 60})
	f.Add(append(make([]byte, 12), 0xFF, 0xFF))
	r := dialFake(f)
	f.Fuzz(func(t *testing.T, header []byte) {
		if len(header) > 100000 {
			return
		}
		if len(header) < 12 { // no broker can forget the size of the body
			return
		}
		copy(header[4:12], make([]byte, 8)) // no body: delivered at once
		r.read(t, header, "")
	})
}
