package forward

import (
	"bufio"
	"bytes"
	"context"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
)

// source makes header tables out of a fuzzer's bytes.
type source struct{ b []byte }

func (s *source) byte() byte {
	if len(s.b) == 0 {
		return 0
	}
	c := s.b[0]
	s.b = s.b[1:]
	return c
}

func (s *source) text() string {
	n := int(s.byte())
	if n == 255 {
		n = 16 * int(s.byte()) // long ones
	}
	n = min(n, len(s.b))
	t := string(s.b[:n])
	s.b = s.b[n:]
	return t
}

func (s *source) value(depth int) any {
	kind := s.byte() % 20
	n := int64(s.byte())<<56 | int64(s.byte())<<40 | int64(s.byte())
	switch kind {
	case 0:
		return nil
	case 1:
		return n > 0
	case 2:
		return int8(n)
	case 3:
		return int16(n)
	case 4:
		return int32(n)
	case 5:
		return n
	case 6:
		return uint8(n)
	case 7:
		return uint64(n)
	case 8:
		return float64(n) / 3
	case 9:
		return float32(n)
	case 10:
		return []byte(s.text())
	case 11:
		return time.Unix(n, 0)
	case 12:
		return inbox.Decimal{Scale: uint8(n), Value: int32(n >> 8)}
	case 13:
		if depth < 4 {
			return s.table(depth + 1)
		}
	case 14:
		if depth < 4 {
			return []any{s.value(depth + 1), s.value(depth + 1)}
		}
	}
	return s.text()
}

func (s *source) table(depth int) inbox.Table {
	t := inbox.Table{}
	for range int(s.byte()) {
		if len(s.b) == 0 {
			break
		}
		t[s.text()] = s.value(depth)
	}
	return t
}

// FuzzTableToHeaders: whatever a message says, the request can be built, keeps
// its limits, and has no header that the message smuggled in.
func FuzzTableToHeaders(f *testing.F) {
	f.Add("order-1", "application/json", "gzip", "key", int64(1_700_000_000), []byte("\x02\x01a\x0f\x00\x00\x00\x01b\x0bConnection\x0f\x00\x00\x00\x05close"))
	f.Add("a\r\nHost: x", "x\r\nY: z", "\x00", "é", int64(1)<<50, []byte("\x03\x0btraceparent\x0f\x00\x00\x00\x370-"))
	f.Add("", " ", "utf-8", "%", int64(-1)<<62, []byte("\xff\x03a_b\x0d\x00\x00\x00\x02\x03x-y\x0a\x00\x00\x00\x02\xff\xfe"))
	f.Fuzz(func(t *testing.T, id, contentType, encoding, routing string, stamp int64, table []byte) {
		d := &inbox.Delivery{
			ID: inbox.MessageID(id),
			Message: inbox.Message{
				Exchange: routing, RoutingKey: routing, Body: table,
				Properties: inbox.Properties{
					ContentType: contentType, ContentEncoding: encoding, MessageID: id, CorrelationID: routing, ReplyTo: id,
					Timestamp: time.Unix(stamp, 0), Type: contentType, UserID: encoding, AppID: id, Expiration: routing,
				},
				Headers: (&source{table}).table(0),
			},
		}
		fields := fieldsOf(Options{}, d)
		if err := checkFields(fields); err != nil {
			t.Fatal(err)
		}
		if again := fieldsOf(Options{}, d); !slices.Equal(fields, again) {
			t.Fatalf("got other fields the second time: %v, want %v", again, fields)
		}

		// Over the wire: the same fields arrive, and the same body.
		u := &url.URL{Scheme: "http", Host: "localhost", Path: "/"}
		req := newRequest(context.Background(), u, fields, d.Body)
		if req.GetBody != nil {
			t.Fatal("got a request that the transport may replay")
		}
		var wire bytes.Buffer
		if err := req.Write(&wire); err != nil {
			t.Fatal(err)
		}
		got, err := http.ReadRequest(bufio.NewReader(&wire))
		if err != nil {
			t.Fatal(err)
		}
		want := http.Header{}
		for _, f := range fields {
			want[f.name] = []string{f.value}
		}
		got.Header.Del("Content-Length")
		if !maps.EqualFunc(got.Header, want, slices.Equal) {
			t.Fatalf("got header %v, want %v", got.Header, want)
		}
		if got.ContentLength != int64(len(d.Body)) || got.Host != "localhost" || len(got.TransferEncoding) > 0 {
			t.Fatalf("got length %d, host %s, coding %v; want %d, localhost, none", got.ContentLength, got.Host, got.TransferEncoding, len(d.Body))
		}
	})
}

func FuzzRetryAfter(f *testing.F) {
	for _, s := range []string{"", "0", "120", "-1", "1.5", "99999999999999999999", " 7 ", "Wed, 21 Oct 2026 07:28:00 GMT", "Wed, 21 Oct 9999 07:28:00 GMT"} {
		f.Add(s)
	}
	now := time.Date(2026, 10, 21, 7, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, s string) {
		if d := parseRetryAfter(s, now); d < 0 || d > time.Hour {
			t.Fatalf("Retry-After %q: got %v, want 0 to 1h", s, d)
		}
	})
}

// FuzzStatusOverrides: an override that is accepted rules its statuses and no
// others, and nothing makes a verdict that the table does not have.
func FuzzStatusOverrides(f *testing.F) {
	f.Add("404", "park", "5xx", "retry", 404)
	f.Add("4XX", "ack", "409", "later", 418)
	f.Add("2xx", "slow", "+20", "pause", 204)
	f.Add("040", "ack", "5x5", "", 100)
	f.Fuzz(func(t *testing.T, k1, v1, k2, v2 string, status int) {
		rules := map[string]string{k1: v1, k2: v2}
		o, err := ParseStatusOverrides(rules)
		got := o.verdict(status)
		if !slices.Contains(inbox.Verdicts, got) || got == inbox.NotSent || got == inbox.Unreachable {
			t.Fatalf("status %d: got %s", status, got)
		}
		if err != nil {
			return
		}
		want := verdictOf(status)
		if status >= 200 && status <= 599 {
			want = refVerdict(rules, status, want)
		}
		if got != want {
			t.Fatalf("%v, status %d: got %s, want %s", rules, status, got, want)
		}
	})
}
