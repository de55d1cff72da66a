package forward

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
)

func fieldsOf(o Options, d *inbox.Delivery) []field {
	o.ConsumerName = "billing"
	o.setDefaults()
	return newMapper(&o).fields(d)
}

// lines shows fields as they go over the wire, sorted.
func lines(fields []field) []string {
	var l []string
	for _, f := range fields {
		l = append(l, f.name+": "+f.value)
	}
	slices.Sort(l)
	return l
}

// mappedLines shows only what comes from the message.
func mappedLines(m inbox.Message) []string {
	return slices.DeleteFunc(lines(fieldsOf(Options{}, &inbox.Delivery{Message: m})), func(s string) bool {
		return strings.HasPrefix(s, "Inbox-") || strings.HasPrefix(s, "User-Agent") ||
			s == "Content-Type: application/octet-stream"
	})
}

func compareLines(t *testing.T, name string, got, want []string) {
	t.Helper()
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%s: got\n  %s\nwant\n  %s", name, strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func TestEveryPropertyHasItsHeader(t *testing.T) {
	t.Parallel()
	d := &inbox.Delivery{
		ID: "order-1", Fingerprint: inbox.Fingerprint{0xab, 1}, Redelivered: true, Requests: 2,
		Message: inbox.Message{
			Exchange: "orders", RoutingKey: "orders.paid",
			Properties: inbox.Properties{
				ContentType: "application/json; charset=utf-8", ContentEncoding: "gzip", DeliveryMode: 2, Priority: 5,
				CorrelationID: "c 1", ReplyTo: "reply", Expiration: "60000", MessageID: "order-1",
				Timestamp: time.Date(2026, 8, 1, 12, 0, 0, 0, time.FixedZone("", 7200)),
				Type:      "order.paid", UserID: "guest", AppID: "shop",
			},
			Headers: inbox.Table{"tenant": "a", "n": int32(7)},
		},
	}
	compareLines(t, "headers", lines(fieldsOf(Options{}, d)), []string{
		"User-Agent: inboxd",
		"Content-Type: application/json; charset=utf-8",
		"Content-Encoding: gzip",
		"Idempotency-Key: order-1",
		"Inbox-Consumer: billing",
		"Inbox-Attempt: 3",
		"Inbox-Redelivered: true",
		"Inbox-Fingerprint: ab01000000000000",
		"Amqp-Exchange: orders",
		"Amqp-Routing-Key: orders.paid",
		"Amqp-Message-Id: order-1",
		"Amqp-Correlation-Id: c 1",
		"Amqp-Reply-To: reply",
		"Amqp-Type: order.paid",
		"Amqp-App-Id: shop",
		"Amqp-User-Id: guest",
		"Amqp-Timestamp: 2026-08-01T10:00:00Z",
		"Amqp-Priority: 5",
		"Amqp-Expiration: 60000",
		`Amqp-Headers: {"n":7,"tenant":"a"}`,
		"Amqp-Header-N: 7",
		"Amqp-Header-Tenant: a",
	})
}

func TestKeyCanBeQuoted(t *testing.T) {
	t.Parallel()
	for id, want := range map[inbox.MessageID]string{
		"a": `"a"`, `a"b\c`: `"a\"b\\c"`, "a%20": `"a%20"`,
	} {
		h := headerOf(fieldsOf(Options{IdempotencyKey: KeyQuoted}, &inbox.Delivery{ID: id}))
		if got := h.Get("Idempotency-Key"); got != want {
			t.Errorf("ID %s: got %s, want %s", id, got, want)
		}
	}
	if h := headerOf(fieldsOf(Options{}, &inbox.Delivery{})); h.Values("Idempotency-Key") != nil {
		t.Errorf("without an ID: got key %q, want none", h.Get("Idempotency-Key"))
	}
}

func headerOf(fields []field) http.Header {
	return newRequest(context.Background(), &url.URL{Scheme: "http", Host: "h"}, fields, []byte("x")).Header
}

func TestContentTypeAndEncoding(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		own, encoding, override string
		headers                 inbox.Table
		want                    []string
	}{
		{want: []string{"Content-Type: application/octet-stream"}},
		{own: "text/plain; charset=utf-8", want: []string{"Content-Type: text/plain; charset=utf-8"}},
		{own: " text/plain\t", want: []string{"Content-Type: text/plain"}},
		{own: "text/plain\r\nX: y", want: []string{
			"Content-Type: application/octet-stream", "Amqp-Content-Type: text/plain%0D%0AX:%20y", "Amqp-Encoded: Amqp-Content-Type",
		}},
		{override: "application/json", want: []string{"Content-Type: application/json"}},
		{own: "application/json", override: "application/json", want: []string{"Content-Type: application/json"}},
		{own: "text/plain", override: "application/json", want: []string{
			"Content-Type: application/json", "Amqp-Content-Type: text/plain",
		}},
		{encoding: "gzip", want: []string{"Content-Type: application/octet-stream", "Content-Encoding: gzip"}},
		{encoding: "ZSTD", want: []string{"Content-Type: application/octet-stream", "Content-Encoding: ZSTD"}},
		{encoding: "utf-8", want: []string{"Content-Type: application/octet-stream", "Amqp-Content-Encoding: utf-8"}},
		{encoding: "gzip\n", want: []string{
			"Content-Type: application/octet-stream", "Amqp-Content-Encoding: gzip%0A", "Amqp-Encoded: Amqp-Content-Encoding",
		}},
	} {
		d := &inbox.Delivery{Message: inbox.Message{
			Properties: inbox.Properties{ContentType: c.own, ContentEncoding: c.encoding}, Headers: c.headers,
		}}
		got := slices.DeleteFunc(lines(fieldsOf(Options{ContentType: c.override}, d)), func(s string) bool {
			return strings.HasPrefix(s, "Inbox-") || strings.HasPrefix(s, "User-Agent")
		})
		compareLines(t, fmt.Sprintf("%q %q %q", c.own, c.encoding, c.override), got, c.want)
	}
}

func TestHeaderTable(t *testing.T) {
	t.Parallel()
	at := time.Unix(1_700_000_000, 0)
	for name, c := range map[string]struct {
		table inbox.Table
		want  []string
	}{
		"scalars": {
			inbox.Table{
				"b": true, "i8": int8(-1), "u16": uint16(9), "i": int64(1 << 40), "f": 1.5, "f32": float32(0.1),
				"bytes": []byte("x y"), "t": at, "d": inbox.Decimal{Scale: 2, Value: -5},
			},
			[]string{
				"Amqp-Header-B: true", "Amqp-Header-I8: -1", "Amqp-Header-U16: 9", "Amqp-Header-I: 1099511627776",
				"Amqp-Header-F: 1.5", "Amqp-Header-F32: 0.1", "Amqp-Header-Bytes: x y",
				"Amqp-Header-T: 2023-11-14T22:13:20Z", "Amqp-Header-D: -0.05",
			},
		},
		"names": {
			inbox.Table{"a_b": "1", "c.d": "2", "e f": "3", "g:h": "4", "x!y": "5"},
			[]string{
				"Amqp-Header-A-B: 1", "Amqp-Header-C-D: 2", "Amqp-Header-E-F: 3", "Amqp-Header-G-H: 4", "Amqp-Header-X!y: 5",
			},
		},
		"only in JSON": {
			inbox.Table{
				"": "0", "a-b": "1", "a_b": "2", "X": "3", "x": "4", "ü": "5", "a\r\nb": "6", "list": []any{int32(1)},
				"table": inbox.Table{}, "void": nil, "Connection": "close", "transfer_encoding": "chunked", "te": "trailers", "(": "7",
			},
			nil,
		},
		"encoded": {
			inbox.Table{"a": " x", "b": "x ", "c": "ü", "d": "50%\n", "e": "50%", "f": "", "g": "\xff", "h": "a\tb", "i": "\x7f"},
			[]string{
				"Amqp-Header-A: %20x", "Amqp-Header-B: x%20", "Amqp-Header-C: %C3%BC", "Amqp-Header-D: 50%25%0A",
				"Amqp-Header-E: 50%", "Amqp-Header-F: ", "Amqp-Header-G: %FF", "Amqp-Header-H: a%09b", "Amqp-Header-I: %7F",
				"Amqp-Encoded: Amqp-Header-A, Amqp-Header-B, Amqp-Header-C, Amqp-Header-D, Amqp-Header-G, Amqp-Header-H, Amqp-Header-I",
			},
		},
		"trace": {
			inbox.Table{
				"traceparent": []byte("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"), "TraceState": "a=1,b=2", "baggage": "k=v",
			},
			[]string{
				"Traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "Tracestate: a=1,b=2", "Baggage: k=v",
				"Amqp-Header-Traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
				"Amqp-Header-Tracestate: a=1,b=2", "Amqp-Header-Baggage: k=v",
			},
		},
	} {
		got := slices.DeleteFunc(mappedLines(inbox.Message{Headers: c.table}), func(s string) bool {
			return strings.HasPrefix(s, "Amqp-Headers: ")
		})
		compareLines(t, name, got, c.want)
	}
}

func TestTimestampBeyondYear9999IsTheIntegerItIs(t *testing.T) {
	t.Parallel()
	for unix, want := range map[int64]string{
		1_700_000_000_000: "1700000000000", -1 << 60: "-1152921504606846976", 0: "1970-01-01T00:00:00Z", 253402300799: "9999-12-31T23:59:59Z",
	} {
		got := mappedLines(inbox.Message{Properties: inbox.Properties{Timestamp: time.Unix(unix, 0)}})
		compareLines(t, fmt.Sprint(unix), got, []string{"Amqp-Timestamp: " + want})
	}
}

func TestTraceHeadersMustBeWellFormed(t *testing.T) {
	t.Parallel()
	const good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for s, want := range map[string]bool{
		good: true, good + "-": false, "01" + good[2:] + "-more": true, "ff" + good[2:]: false, strings.ToUpper(good): false, good[:54]: false,
		"00-00000000000000000000000000000000-b7ad6b7169203331-01": false,
		"00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01": false,
		"01" + good[2:] + "-\n":                                   false, "01" + good[2:] + strings.Repeat("-x", 200): false, "": false,
	} {
		if got := isTraceParent(s); got != want {
			t.Errorf("traceparent %q: got %v, want %v", s, got, want)
		}
	}
	for in, want := range map[string]string{
		"a=1": "a=1", "a=1, b=2;p=3": "a=1, b=2;p=3", "a": "", "=1": "", "a=\n": "", "a=ü": "", "": "",
		"a=1,b=" + strings.Repeat("x", 600): "a=1", "b=" + strings.Repeat("x", 600): "",
	} {
		if got := capBaggage(in); got != want {
			t.Errorf("baggage %q: got %q, want %q", in, got, want)
		}
	}
}

func TestCloudEventsInBinaryMode(t *testing.T) {
	t.Parallel()
	for _, prefix := range cePrefixes {
		table := inbox.Table{
			prefix + "specversion": "1.0", prefix + "id": []byte("A 1"), prefix + "source": "/shop", prefix + "type": "order.paid",
			prefix + "time": time.Unix(1_700_000_000, 0), prefix + "subject": `50% "ü"`, prefix + "sequence": int32(3),
			prefix + "datacontenttype": "application/json", prefix + "Bad": "x", prefix + "x-y": "x", prefix + "bin": "\xff", prefix + "none": "",
		}
		got := slices.DeleteFunc(lines(fieldsOf(Options{}, &inbox.Delivery{Message: inbox.Message{Headers: table}})), func(s string) bool {
			return !strings.HasPrefix(s, "Ce-") && !strings.HasPrefix(s, "Content-Type")
		})
		compareLines(t, "prefix "+prefix, got, []string{
			"Content-Type: application/json", "Ce-Specversion: 1.0", "Ce-Id: A%201", "Ce-Source: /shop", "Ce-Type: order.paid",
			"Ce-Time: 2023-11-14T22:13:20Z", "Ce-Subject: 50%25%20%22%C3%BC%22", "Ce-Sequence: 3",
		})
		delete(table, prefix+"source")
		if got := strings.Join(mappedLines(inbox.Message{Headers: table}), "\n"); strings.Contains("\n"+got, "\nCe-") {
			t.Errorf("prefix %q without source: got\n%s\nwant no ce- header", prefix, got)
		}
	}
}

func TestLimitsHoldAndWhatIsLeftOutIsCounted(t *testing.T) {
	t.Parallel()
	many, large, long := inbox.Table{}, inbox.Table{}, inbox.Table{}
	for i := range 1000 {
		many[fmt.Sprintf("h%04d", i)] = "v"
		if i < 20 {
			large[fmt.Sprintf("h%04d", i)] = strings.Repeat("ü", 300)
		}
	}
	long["a"] = strings.Repeat("x", 5000)
	long["b"] = inbox.Table{}
	long["c"] = "kept"
	for name, c := range map[string]struct {
		table inbox.Table
		want  string // Amqp-Headers-Omitted
	}{
		// 58 fields, and the JSON is above 4 KiB.
		"many": {many, "943"},
		// 600 bytes become 1,800 on the wire; 4 fit, and no JSON.
		"large": {large, "17"},
		// a, b, and the JSON.
		"long": {long, "3"},
	} {
		fields := fieldsOf(Options{}, &inbox.Delivery{Message: inbox.Message{Headers: c.table}})
		if err := checkFields(fields); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := headerOf(fields).Get("Amqp-Headers-Omitted"); got != c.want {
			t.Errorf("%s: got %s left out, want %s", name, got, c.want)
		}
		again := fieldsOf(Options{}, &inbox.Delivery{Message: inbox.Message{Headers: c.table}})
		if !slices.Equal(fields, again) {
			t.Errorf("%s: got other fields the second time", name)
		}
	}
}

// ours are the fields that do not come from the message's headers.
var ours = map[string]bool{
	"Content-Type": true, "Content-Encoding": true, "Idempotency-Key": true, "User-Agent": true,
	"Inbox-Consumer": true, "Inbox-Attempt": true, "Inbox-Redelivered": true, "Inbox-Fingerprint": true,
}

// checkFields says what is wrong with the header of a request.
func checkFields(fields []field) error {
	seen := map[string]bool{}
	count, size := 0, 0
	for _, f := range fields {
		if http.CanonicalHeaderKey(f.name) != f.name || f.name == "" || strings.Trim(f.name, tokenBytes) != "" {
			return fmt.Errorf("field name %q is not canonical", f.name)
		}
		if seen[f.name] {
			return fmt.Errorf("field %s is there twice", f.name)
		}
		seen[f.name] = true
		if !isPlainValue(f.value) {
			return fmt.Errorf("value %q of %s cannot be sent as it is", f.value, f.name)
		}
		if ours[f.name] {
			continue
		}
		if !strings.HasPrefix(f.name, "Amqp-") && !strings.HasPrefix(f.name, "Ce-") &&
			f.name != "Traceparent" && f.name != "Tracestate" && f.name != "Baggage" {
			return fmt.Errorf("foreign field %s", f.name)
		}
		if fieldSize(f.name, f.value) > 4096 {
			return fmt.Errorf("field %s has %d bytes", f.name, fieldSize(f.name, f.value))
		}
		count++
		size += fieldSize(f.name, f.value)
	}
	if count > 60 || size > 8192 {
		return fmt.Errorf("%d fields and %d bytes come from the message", count, size)
	}
	return nil
}

const tokenBytes = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
