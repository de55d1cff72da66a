package admin

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func decode[T any](t *testing.T, s string) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(s), &v); err != nil {
		t.Fatalf("decoding %s: %v", s, err)
	}
	return v
}

func TestStatusTellsEveryConsumerAndWhy(t *testing.T) {
	t.Parallel()
	d := open(t)
	d.park(t, 3)
	s := decode[Status](t, d.want(t, 200, "GET", "/api/status", "").body)
	if s.Consuming || len(s.Consumers) != 2 || s.Consumers[1].Hindrances[0].Why != "the health URL answers 503" {
		t.Errorf("got %+v, want mail not consuming because of its handler", s)
	}
	if s.Store.Retention != "168h" {
		t.Errorf("retention: got %q, want 168h", s.Store.Retention)
	}
	if len(s.Parked) != 1 || s.Parked[0].Count != 3 || s.Parked[0].Reason != "rejected" {
		t.Errorf("parked: got %+v, want 3 rejected", s.Parked)
	}
	d.store.Fail(errStore)
	s = decode[Status](t, d.want(t, 200, "GET", "/api/status", "").body)
	if s.ParkedError == "" || len(s.Consumers) != 2 {
		t.Errorf("with the store down: got %+v, want the consumers and parked_error", s)
	}
}

func TestParkedListIsPaged(t *testing.T) {
	t.Parallel()
	d := open(t)
	want := d.park(t, 7)
	var got []string
	after, pages := "", 0
	for {
		l := decode[ParkedList](t, d.want(t, 200, "GET", "/api/parked?consumer=billing&reason=rejected&state=parked&limit=3&after="+after, "").body)
		for _, p := range l.Parked {
			got = append(got, p.ID)
		}
		pages++
		if after = l.Next; after == "" {
			break
		}
	}
	if !reflect.DeepEqual(got, want) || pages != 3 {
		t.Errorf("got %v on %d pages, want %v on 3", got, pages, want)
	}
}

func TestMisspelledFilterSelectsNothing(t *testing.T) {
	t.Parallel()
	d := open(t)
	d.park(t, 2)
	for _, q := range []string{"reason=rejectd", "state=park", "before=yesterday", "older=3", "older=-1h", "older=1.5d", "older=-2d", "limit=0", "limit=1001", "message_id=a%20b", "raw="} {
		for _, path := range []string{"GET /api/parked", "POST /api/parked/discard", "POST /api/parked/replay"} {
			method, p, _ := strings.Cut(path, " ")
			if strings.HasPrefix(q, "limit") && method == "POST" || q == "raw=" && method == "GET" {
				continue
			}
			if a := d.send(t, method, p+"?"+q, ""); a.status != 400 {
				t.Errorf("%s?%s: got %d %s, want 400", path, q, a.status, a.body)
			}
		}
	}
	if d.store.Count() != 2 {
		t.Errorf("got %d messages left, want 2", d.store.Count())
	}
}

func TestAgeSelects(t *testing.T) {
	t.Parallel()
	d := open(t)
	d.park(t, 2)
	young := parkedMessage("young", "x")
	young.ParkedAt = time.Now().Add(-25 * time.Hour)
	if err := d.store.Park(t.Context(), young); err != nil {
		t.Fatal(err)
	}
	for q, want := range map[string]int{"older=24h": 3, "older=1d": 3, "older=2d": 2, "older=48h": 2, "before=2026-03-01T12:00:02Z": 0, "before=2026-03-01T12:00:03Z": 2} {
		if l := decode[ParkedList](t, d.want(t, 200, "GET", "/api/parked?"+q, "").body); len(l.Parked) != want {
			t.Errorf("%s: got %d messages, want %d", q, len(l.Parked), want)
		}
	}
}

func TestOneMessageIsShownWhole(t *testing.T) {
	t.Parallel()
	d := open(t)
	id := d.park(t, 1)[0]
	a := d.want(t, 200, "GET", "/api/parked/"+id, "")
	golden(t, "parked.json", a.body)
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestProblemsAreProblemJSON(t *testing.T) {
	t.Parallel()
	d := open(t)
	var all strings.Builder
	for _, r := range []struct{ method, path string }{
		{"GET", "/api/parked/nothing"},
		{"POST", "/api/parked/nothing/replay"},
		{"POST", "/api/parked/nothing/discard"},
		{"POST", "/api/parked/discard"},
		{"GET", "/api/parked?reason=x"},
		{"GET", "/api/records/billing/order-1"},
		{"GET", "/api/records/nobody/order-1"},
		{"GET", "/api/records/billing/a%20b"},
		{"DELETE", "/api/records/billing/order-1"},
		{"PUT", "/api/records/billing/order-1?fingerprint=xyz"},
		{"POST", "/api/consumers/nobody/pause"},
		{"GET", "/api/jobs/nothing"},
		{"GET", "/api/nothing"},
		{"DELETE", "/api/status"},
		{"POST", "/drain?timeout=soon"},
	} {
		a := d.send(t, r.method, r.path, "")
		if ct := a.header.Get("Content-Type"); ct != "application/problem+json" {
			t.Errorf("%s %s: Content-Type: got %q, want application/problem+json", r.method, r.path, ct)
		}
		if p := decode[Problem](t, a.body); p.Status != a.status {
			t.Errorf("%s %s: status in the body: got %d, want %d", r.method, r.path, p.Status, a.status)
		}
		fmt.Fprintf(&all, "%s %s\n%s\n", r.method, r.path, a.body)
	}
	golden(t, "problems.txt", all.String())
}

func TestStoreFailureIsUnavailable(t *testing.T) {
	t.Parallel()
	d := open(t)
	d.store.Fail(errStore)
	for _, r := range [][2]string{
		{"GET", "/api/parked"},
		{"GET", "/api/parked/1"},
		{"POST", "/api/parked/1/replay"},
		{"GET", "/api/parked/export"},
		{"GET", "/api/records/billing/a"},
		{"PUT", "/api/records/billing/a"},
		{"GET", "/api/messages/billing/a"},
		{"GET", "/api/audit"},
	} {
		if a := d.send(t, r[0], r[1], ""); a.status != 503 || !strings.Contains(a.body, "disk is full") {
			t.Errorf("%s %s: got %d %s, want 503 and why", r[0], r[1], a.status, a.body)
		}
	}
}

func TestReplayAndDiscardAreAuditedWithWhoAndWhy(t *testing.T) {
	t.Parallel()
	d := open(t, withToken(t, "# people\nops secret\n"))
	ids := d.park(t, 2)
	auth := []string{"Authorization", "Bearer secret", "X-Inboxd-Actor", "ann\u202e\n"}
	auth[3] = "ann\u202e"
	d.want(t, 202, "POST", "/api/parked/"+ids[0]+"/replay?reason=producer+fixed", "", auth...)
	got := d.lastDeed(t)
	want := inbox.AuditEntry{At: got.At, Actor: "ann (ops, 127.0.0.1)", Action: "replay", Consumer: "billing", Target: ids[0] + " order-0", Reason: "producer fixed"}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	d.want(t, 200, "POST", "/api/parked/"+ids[1]+"/discard?why=test+data", "", auth...)
	if got := d.lastDeed(t); got.Action != "discard" || got.Reason != "test data" {
		t.Errorf("got %+v, want a discard because of test data", got)
	}
	d.want(t, 404, "POST", "/api/parked/"+ids[1]+"/discard", "", auth...)
	list := decode[AuditList](t, d.want(t, 200, "GET", "/api/audit?limit=1", "", auth...).body)
	if len(list.Audit) != 1 || list.Audit[0].Action != "discard" {
		t.Errorf("got %+v, want the newest deed alone", list)
	}
}

func TestExportAndImportKeepMessagesWhole(t *testing.T) {
	t.Parallel()
	from, to := open(t), open(t)
	from.park(t, 3)
	odd := parkedMessage("", "\x00\xff")
	odd.Reason, odd.Properties.AppID = inbox.MissingID, "caf\xe9"
	odd.Properties.Timestamp = time.Unix(1772366400000, 0).UTC()
	odd.Answer, odd.RoutingKey = []byte{0xff, 0xfe}, "\x80"
	later := parkedMessage("later", "x")
	later.State, later.Reason, later.Due = inbox.StateDeferred, inbox.NoReason, someTime.Add(time.Hour)
	for _, m := range []*inbox.ParkedMessage{odd, later} {
		if err := from.store.Park(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	lines := from.want(t, 200, "GET", "/api/parked/export", "").body
	if n := strings.Count(lines, "\n"); n != 5 {
		t.Fatalf("got %d lines, want 5", n)
	}
	res := decode[Imported](t, to.want(t, 200, "POST", "/api/parked/import?why=moving", lines).body)
	if res.Imported != 5 || res.Failed != 0 || !res.Done {
		t.Fatalf("got %+v, want 5 imported", res)
	}
	imported := map[inbox.MessageID]*inbox.ParkedMessage{}
	for _, m := range to.store.Parked {
		imported[m.MessageID] = m
	}
	for _, want := range from.store.Parked {
		got := imported[want.MessageID]
		if got != nil {
			got.ID = want.ID // a store gives its own
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
}

func TestImportTellsWhichLinesAreBad(t *testing.T) {
	t.Parallel()
	d := open(t)
	good := strings.TrimSpace(func() string { d.park(t, 1); return d.want(t, 200, "GET", "/api/parked/export", "").body }())
	bad := strings.Replace(good, `"consumer":"billing"`, `"consumer":"nobody"`, 1)
	res := decode[Imported](t, d.want(t, 200, "POST", "/api/parked/import", "{\n\n"+bad+"\n"+good).body)
	if res.Imported != 1 || res.Failed != 2 || res.Errors[0].Line != 1 || res.Errors[1].Line != 3 {
		t.Errorf("got %+v, want lines 1 and 3 refused", res)
	}
	if d.store.Count() != 1 {
		t.Errorf("got %d messages, want 1: it was there already", d.store.Count())
	}
}

func TestRecordsByAnyID(t *testing.T) {
	t.Parallel()
	d := open(t)
	for _, raw := range []string{"a", " a", "a ", "a/b", "..", ".", "100%", "a?b#c", "\r\n\x00", "é", strings.Repeat("x", 4000)} {
		id := inbox.Canonical([]byte(raw))
		path := "/api/records/billing/" + escapeAll(string(id))
		d.want(t, 404, "GET", path, "")
		d.want(t, 201, "PUT", path+"?fingerprint=0102030405060708", "")
		d.want(t, 200, "PUT", "/api/records/billing?raw="+url.QueryEscape(raw), "")
		rec := decode[Record](t, d.want(t, 200, "GET", "/api/records/billing?raw="+url.QueryEscape(raw), "").body)
		if rec.MessageID != id || rec.Fingerprint != "0102030405060708" {
			t.Errorf("%q: got %+v, want %s", raw, rec, id)
		}
		l := decode[MessageLedger](t, d.want(t, 200, "GET", "/api/messages/billing?id="+url.QueryEscape(string(id)), "").body)
		if l.Verdict != "processed" || len(l.Audit) != 2 {
			t.Errorf("%q: got %+v, want processed, with two deeds", raw, l)
		}
		d.want(t, 200, "DELETE", path, "")
		d.want(t, 404, "GET", path, "")
	}
}

// escapeAll escapes a path element, the dots of "." and ".." too.
func escapeAll(s string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' {
			b.WriteByte(c)
			continue
		}
		fmt.Fprintf(&b, "%%%02X", c)
	}
	return b.String()
}

func TestImportOfIDs(t *testing.T) {
	t.Parallel()
	d := open(t)
	var lines strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&lines, "order %d\r\n", i)
	}
	res := decode[Imported](t, d.want(t, 200, "POST", "/api/records/billing/import", lines.String(),
		"Content-Type", "application/x-www-form-urlencoded").body)
	if res.Imported != 2000 || res.Lines != 2000 {
		t.Errorf("got %+v, want 2000 recorded", res)
	}
	res = decode[Imported](t, d.want(t, 200, "POST", "/api/records/billing/import?canonical=true", "order%207\nbad id\nnew\n").body)
	if res.Imported != 1 || res.Already != 1 || res.Failed != 1 {
		t.Errorf("got %+v, want one new, one known, one refused", res)
	}
	d.store.Fail(errStore)
	if a := d.send(t, "POST", "/api/records/billing/import", "x\ny\n"); a.status != 503 {
		t.Errorf("with the store down: got %d, want 503", a.status)
	}
}

func TestMessageLedgerVerdicts(t *testing.T) {
	t.Parallel()
	flying := inbox.Key{Consumer: "billing", ID: "flying"}
	d := open(t, func(o *Options) {
		o.InFlight = func(k inbox.Key) []Flight {
			if k == flying {
				return []Flight{{Since: someTime, Requests: 2}}
			}
			return nil
		}
	})
	d.park(t, 1)
	for id, want := range map[string]string{"flying": "in_flight", "order-0": "parked", "nothing": "unknown"} {
		l := decode[MessageLedger](t, d.want(t, 200, "GET", "/api/messages/billing/"+id, "").body)
		if l.Verdict != want || len(l.NotKept) == 0 {
			t.Errorf("%s: got %+v, want %s, and what is not kept", id, l, want)
		}
	}
}

func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	d := open(t)
	d.want(t, 200, "POST", "/api/consumers/billing/pause?reason=migration", "")
	if got, want := d.paused["billing"], "paused by (127.0.0.1): migration"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	d.want(t, 200, "POST", "/api/consumers/billing/resume", "")
	if len(d.paused) != 0 {
		t.Errorf("got %v, want none paused", d.paused)
	}
	if got := d.lastDeed(t); got.Action != "resume" {
		t.Errorf("got %+v, want a resume", got)
	}
}

func TestDrainAnswersWhenDrainedOrAtTheLimit(t *testing.T) {
	t.Parallel()
	d := open(t)
	if got := decode[Drained](t, d.want(t, 200, "POST", "/drain", "").body); !got.Drained {
		t.Errorf("got %+v, want drained", got)
	}
	slow := open(t, func(o *Options) {
		o.Drain = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	})
	slow.want(t, 504, "POST", "/drain?timeout=1ms", "")
	broken := open(t, func(o *Options) { o.Drain = func(context.Context) error { return errors.New("no") } })
	broken.want(t, 503, "POST", "/drain", "")
}

func TestHealthEndpoints(t *testing.T) {
	t.Parallel()
	life, alive := LifeStarting, error(nil)
	var stopped atomic.Bool
	d := open(t, func(o *Options) {
		o.Life = func() Life { return life }
		o.Alive = func() error { return alive }
		o.Consumers = func() []ConsumerStatus {
			cs := someConsumers()
			if !stopped.Load() {
				return cs[:1]
			}
			cs[0].Consuming = false
			return cs
		}
	})
	h := d.HealthHandler()
	get := func(method, path string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, path, nil))
		return w
	}
	check := func(path string, want int) {
		t.Helper()
		if w := get("GET", path); w.Code != want {
			t.Errorf("%s: got %d %s, want %d", path, w.Code, w.Body, want)
		}
	}
	check("/livez", 200)
	check("/readyz", 503)
	check("/consuming", 503)
	life = LifeRunning
	check("/readyz", 200)
	check("/consuming", 200)
	check("/metrics", 200)
	stopped.Store(true)
	check("/readyz", 200)
	check("/livez", 200)
	check("/consuming", 503)
	c := decode[Consuming](t, get("GET", "/consuming").Body.String())
	if c.Consumers[0].Why[0].Hindrance != "broker" || c.Consumers[1].Why[0].Why != "the health URL answers 503" {
		t.Errorf("got %+v, want why for each", c)
	}
	d.StrictReadiness = true
	check("/readyz", 503)
	alive = errors.New("the settling loop has stood still for 40s")
	check("/livez", 503)
	life = LifeDraining
	check("/readyz", 503)
	for _, method := range []string{"POST", "PUT", "DELETE"} {
		for _, path := range []string{"/metrics", "/livez", "/readyz", "/consuming"} {
			if w := get(method, path); w.Code != http.StatusMethodNotAllowed {
				t.Errorf("%s %s: got %d, want 405", method, path, w.Code)
			}
		}
	}
}
