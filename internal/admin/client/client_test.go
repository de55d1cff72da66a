package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/inboxd/inboxd/internal/admin"
	"github.com/inboxd/inboxd/internal/admin/admintest"
	"github.com/inboxd/inboxd/internal/inbox"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var someTime = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// daemon is an admin side over a store in memory.
type daemon struct {
	store     *admintest.Store
	client    *Client
	paused    map[string]string
	draining  atomic.Bool
	stopped   atomic.Bool // not consuming
	drain     func(context.Context) error
	consumers atomic.Pointer[[]string]
}

func start(t *testing.T) *daemon {
	t.Helper()
	d := &daemon{
		store: admintest.NewStore(), paused: map[string]string{},
		drain: func(context.Context) error { return nil },
	}
	d.consumers.Store(&[]string{"billing"})
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("# ours\nops secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	a, err := admin.New(admin.Options{
		Version: "1.2.3", Log: slog.New(slog.DiscardHandler), TokenFile: token,
		Life: func() admin.Life {
			if d.draining.Load() {
				return admin.LifeDraining
			}
			return admin.LifeRunning
		},
		Consumers: func() (cs []admin.ConsumerStatus) {
			for _, name := range *d.consumers.Load() {
				c := admin.ConsumerStatus{
					Name: name, Queue: "orders.paid", Consuming: !d.stopped.Load(), InFlight: 3, OldestSeconds: 1.5,
					Breaker: admin.BreakerStatus{State: "closed"}, Counters: admin.Counters{Processed: 900, Duplicate: 100},
				}
				if d.stopped.Load() {
					c.Hindrances = []inbox.Closure{{Hindrance: inbox.HindranceHandler, Why: "the health URL answers 503", Since: someTime}}
				}
				cs = append(cs, c)
			}
			return cs
		},
		Store: func() admin.StoreStatus { return admin.StoreStatus{Kind: "sqlite", OK: true, Retention: "168h"} },
		Desk:  d.store, Parker: d.store,
		Pause:  func(_ context.Context, name, why string) error { d.paused[name] = why; return nil },
		Resume: func(_ context.Context, name string) error { delete(d.paused, name); return nil },
		Drain:  func(ctx context.Context) error { return d.drain(ctx) },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error)
	go func() { ran <- a.Run(ctx) }()
	srv, health := httptest.NewServer(a.Handler()), httptest.NewServer(a.HealthHandler())
	t.Cleanup(func() {
		srv.Close()
		health.Close()
		cancel()
		<-ran
	})
	d.client = &Client{Admin: srv.URL, Metrics: health.URL, Token: TokenFile(token), Actor: "ann"}
	return d
}

func (d *daemon) park(t *testing.T, n int) (ids []string) {
	t.Helper()
	for i := range n {
		m := &inbox.ParkedMessage{
			Consumer: "billing", MessageID: inbox.MessageID(fmt.Sprintf("order-%d", i)), Reason: inbox.HandlerReject, State: inbox.StateParked,
			Attempts: 1, Requests: 2, LastStatus: 422, Answer: []byte("no such order"), Error: "the handler answered 422", Queue: "orders.paid",
			FirstReceived: someTime, LastAttempt: someTime.Add(time.Second), ParkedAt: someTime.Add(2 * time.Second),
			Message: inbox.Message{
				Exchange: "orders", RoutingKey: "paid", Body: fmt.Appendf(nil, `{"n":%d,"evil":"\u001b]0;x\u0007"}`, i),
				Headers: inbox.Table{"tenant": "acme"}, Properties: inbox.Properties{ContentType: "application/json"},
			},
		}
		if err := d.store.Park(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, m.ID)
	}
	return ids
}

type commandFunc = func(context.Context, Env, []string) int

// run carries out one command line.
func (d *daemon) run(t *testing.T, f commandFunc, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	env := Env{Stdin: strings.NewReader(stdin), Stdout: &out, Stderr: &errs, Connect: func(w Where) (*Client, error) {
		if w.ConfigFile == "broken.yaml" {
			return nil, errors.New("broken.yaml: consumers: must not be empty")
		}
		return d.client, nil
	}}
	code = f(t.Context(), env, args)
	return code, out.String(), errs.String()
}

func (d *daemon) want(t *testing.T, code int, f commandFunc, args ...string) (stdout, stderr string) {
	t.Helper()
	got, stdout, stderr := d.run(t, f, "", args...)
	if got != code {
		t.Fatalf("%v: got %d, stdout %s, stderr %s, want %d", args, got, stdout, stderr, code)
	}
	return stdout, stderr
}

// anyTime finds the times that are not the fixtures'.
var anyTime = regexp.MustCompile(`20\d\d-\d\d-\d\dT[0-9:.]+Z`)

func golden(t *testing.T, name, got string) {
	t.Helper()
	got = anyTime.ReplaceAllStringFunc(got, func(s string) string {
		if strings.HasPrefix(s, "2026-03-01") {
			return s
		}
		return "TIME"
	})
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
		t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
	}
}

func TestWhatCommandsPrint(t *testing.T) {
	t.Parallel()
	d := start(t)
	ids := d.park(t, 2)
	out, _ := d.want(t, 0, Parked, "list")
	golden(t, "list.txt", out)
	out, _ = d.want(t, 0, Parked, "show", ids[0])
	golden(t, "show.txt", out)
	if strings.ContainsAny(out, "\x1b\x07") {
		t.Errorf("got %q, want nothing that a terminal obeys", out)
	}
	d.want(t, 0, Record, "order-9", "--reason", "done by hand")
	out, _ = d.want(t, 0, Show, "order-9")
	golden(t, "ledger.txt", out)
	d.stopped.Store(true)
	out, _ = d.want(t, 0, Status)
	golden(t, "status.txt", out)
	d.want(t, 0, Pause, "billing", "--reason", "migration")
	d.want(t, 0, Resume, "billing")
	out, _ = d.want(t, 0, Audit)
	golden(t, "audit.txt", strings.ReplaceAll(out, "127.0.0.1", "ADDR"))
}

func TestEveryCommandHelps(t *testing.T) {
	t.Parallel()
	d := start(t)
	for name, f := range map[string]commandFunc{
		"show": Show, "forget": Forget, "record": Record, "import-ids": ImportIDs, "drain": Drain, "health": Health,
		"pause": Pause, "resume": Resume, "audit": Audit, "status": Status,
	} {
		out, errs := d.want(t, 0, f, "--help")
		if !strings.HasPrefix(out, "Usage: inboxd "+name) || !strings.Contains(out, "-c FILE") || errs != "" {
			t.Errorf("%s --help: got %q, %q, want its usage on standard output", name, out, errs)
		}
		d.want(t, 2, f, "--no-such-flag")
		d.want(t, 2, f, "a", "b", "c")
	}
	for _, sub := range []string{"list", "show", "replay", "discard", "export", "import", "runs", "stop", "resume"} {
		if out, _ := d.want(t, 0, Parked, sub, "-h"); !strings.HasPrefix(out, "Usage: inboxd parked "+sub) {
			t.Errorf("parked %s -h: got %q, want its usage", sub, out)
		}
	}
	d.want(t, 0, Parked, "help")
	d.want(t, 2, Parked)
	d.want(t, 2, Parked, "lits")
	d.want(t, 2, Status, "-c", "broken.yaml")
}

func TestReplayTellsWhatBecameOfEach(t *testing.T) {
	t.Parallel()
	d := start(t)
	ids := d.park(t, 2)
	d.store.Handler = func(m *inbox.ParkedMessage) inbox.ParkedState {
		if m.ID == ids[0] {
			return ""
		}
		return inbox.StateParked
	}
	out, _ := d.want(t, 1, Parked, "replay", ids[0], ids[1], "--reason", "fixed")
	want := ids[0] + ": processed\n" + ids[1] + ": parked again: rejected, last answer 422: the handler answered 422\n"
	if out != want {
		t.Errorf("got %q, want %q", out, want)
	}
	_, errs := d.want(t, 1, Parked, "replay", "nothing")
	if !strings.Contains(errs, "no message is stored as") {
		t.Errorf("got %q, want that there is none", errs)
	}
}

func TestReplayByFilterFollowsItsRun(t *testing.T) {
	t.Parallel()
	d := start(t)
	d.park(t, 40)
	d.store.Handler = func(*inbox.ParkedMessage) inbox.ParkedState { return "" }
	d.want(t, 2, Parked, "replay")
	d.want(t, 2, Parked, "replay", "--cause", "rejectd")
	d.want(t, 2, Parked, "replay", "id", "--all")
	out, errs := d.want(t, 0, Parked, "replay", "--consumer", "billing", "--cause=rejected", "--rate", "1000")
	if !strings.HasPrefix(out, "replay done: 40 of 40: 40 processed, 0 parked again") || !strings.Contains(errs, " of ") {
		t.Errorf("got %q and progress %q, want all 40 processed", out, errs)
	}
	out, _ = d.want(t, 0, Parked, "runs")
	if !strings.Contains(out, "40 of 40") {
		t.Errorf("got %q, want the run", out)
	}
}

func TestARunCanBeStoppedAndResumed(t *testing.T) {
	t.Parallel()
	d := start(t)
	d.park(t, 100)
	d.store.Handler = func(*inbox.ParkedMessage) inbox.ParkedState { return "" }
	out, _ := d.want(t, 0, Parked, "replay", "--all", "--rate", "50", "--detach", "--json")
	var j admin.Job
	if err := json.Unmarshal([]byte(out), &j); err != nil {
		t.Fatal(err)
	}
	d.want(t, 0, Parked, "stop", j.ID)
	if d.store.Count() == 0 {
		t.Fatal("got no message left, want the run stopped on its way")
	}
	d.want(t, 0, Parked, "resume", j.ID)
	if n := d.store.Count(); n != 0 {
		t.Errorf("got %d left, want none", n)
	}
}

func TestDiscardAsksFirst(t *testing.T) {
	t.Parallel()
	d := start(t)
	ids := d.park(t, 3)
	if _, errs := d.want(t, 2, Parked, "discard", "--consumer", "billing"); !strings.Contains(errs, "3 messages would be discarded; say --yes") {
		t.Errorf("got %q, want how many", errs)
	}
	d.want(t, 2, Parked, "discard", ids[0])
	if d.store.Count() != 3 {
		t.Fatalf("got %d messages, want 3", d.store.Count())
	}
	d.want(t, 0, Parked, "discard", ids[0], "--yes")
	out, _ := d.want(t, 0, Parked, "discard", "--consumer", "billing", "--yes", "--reason", "test data")
	if d.store.Count() != 0 || !strings.HasPrefix(out, "discard done: 2 of 2") {
		t.Errorf("got %q and %d messages, want none", out, d.store.Count())
	}
}

func TestExportGoesBackIn(t *testing.T) {
	t.Parallel()
	from, to := start(t), start(t)
	from.park(t, 5)
	lines, errs := from.want(t, 0, Parked, "export", "--consumer", "billing")
	if strings.Count(lines, "\n") != 5 || !strings.Contains(errs, "5 messages exported") {
		t.Fatalf("got %q, %q, want 5 lines", lines, errs)
	}
	if code, out, errs := to.run(t, Parked, lines, "import", "-"); code != 0 || to.store.Count() != 5 {
		t.Errorf("got %d %q %q and %d messages, want 5", code, out, errs, to.store.Count())
	}
	if code, _, errs := to.run(t, Parked, lines+"{\n", "import", "-"); code != 1 || !strings.Contains(errs, "line 6: ") {
		t.Errorf("got %d %q, want line 6 refused", code, errs)
	}
	out, _ := from.want(t, 0, Parked, "show", "00000001", "--body", "raw")
	if out != `{"n":0,"evil":"\u001b]0;x\u0007"}` {
		t.Errorf("got %q, want the body byte for byte", out)
	}
}

func TestABrokenExportIsAnError(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "{}")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}))
	defer srv.Close()
	n, err := (&Client{Admin: srv.URL}).Export(t.Context(), Filter{}, "", &bytes.Buffer{})
	if n != 1 || err == nil {
		t.Errorf("got %d, %v, want one line and an error", n, err)
	}
}

func TestRecordsByAnyID(t *testing.T) {
	t.Parallel()
	d := start(t)
	for _, raw := range []string{"..", ".", "a/b", " a", "100%", "é?#&", strings.Repeat("x", 3000)} {
		id := string(inbox.Canonical([]byte(raw)))
		d.want(t, 1, Show, "billing", id)
		d.want(t, 0, Record, "billing", raw, "--raw")
		out, _ := d.want(t, 0, Show, id, "--json")
		if !strings.Contains(out, `"verdict": "processed"`) {
			t.Errorf("%q: got %s, want processed", raw, out)
		}
		d.want(t, 0, Forget, "billing", id, "--reason", "again")
		d.want(t, 1, Forget, "billing", id)
	}
	d.want(t, 2, Show, "billing", "a b")
	d.want(t, 1, Show, "nobody", "a")
	d.consumers.Store(&[]string{"billing", "mail"})
	if _, errs := d.want(t, 2, Show, "a"); !strings.Contains(errs, "billing, mail") {
		t.Errorf("got %q, want which consumers there are", errs)
	}
}

func TestImportOfIDsInPieces(t *testing.T) {
	t.Parallel()
	d := start(t)
	var lines strings.Builder
	for i := range idsAtOnce + 10 {
		fmt.Fprintf(&lines, "order %d\n", i)
	}
	code, out, errs := d.run(t, ImportIDs, lines.String()+"last", "billing", "-", "--reason", "cut-over")
	if code != 0 || !strings.HasPrefix(out, "5011 IDs imported, 0 already there") {
		t.Errorf("got %d %q %q, want 5011 recorded", code, out, errs)
	}
	code, out, errs = d.run(t, ImportIDs, strings.Repeat("order%201\n", idsAtOnce)+"a b\n", "billing", "-", "--canonical")
	if code != 1 || !strings.Contains(out, "5000 already there, 1 of 5001") || !strings.Contains(errs, "line 5001: ") {
		t.Errorf("got %d %q %q, want line 5001 refused", code, out, errs)
	}
}

func TestPauseResumeAndDrain(t *testing.T) {
	t.Parallel()
	d := start(t)
	d.want(t, 0, Pause, "billing", "--reason", "migration")
	if got, want := d.paused["billing"], "paused by ann (ops, 127.0.0.1): migration"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	d.want(t, 0, Resume, "billing")
	d.want(t, 1, Resume, "nobody")
	if out, _ := d.want(t, 0, Drain); !strings.HasPrefix(out, "drained in ") {
		t.Errorf("got %q, want drained", out)
	}
	d.drain = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	if _, errs := d.want(t, 1, Drain, "--timeout", "5ms"); !strings.Contains(errs, "draining goes on") {
		t.Errorf("got %q, want that draining goes on", errs)
	}
}

func TestHealthByExitCode(t *testing.T) {
	t.Parallel()
	d := start(t)
	d.want(t, 0, Health)
	d.want(t, 0, Health, "--ready")
	if out, _ := d.want(t, 0, Health, "--consuming", "-q"); out != "" {
		t.Errorf("got %q, want nothing", out)
	}
	d.stopped.Store(true)
	d.want(t, 0, Health, "--ready")
	if _, errs := d.want(t, 1, Health, "--consuming"); !strings.Contains(errs, "the health URL answers 503") {
		t.Errorf("got %q, want why", errs)
	}
	d.draining.Store(true)
	d.want(t, 1, Health, "--ready")
	d.want(t, 0, Health)
}

func TestErrorsSayWhatToDo(t *testing.T) {
	t.Parallel()
	d := start(t)
	d.client.Token = nil
	if _, errs := d.want(t, 2, Parked, "list"); !strings.Contains(errs, "admin.token_file") {
		t.Errorf("without a token: got %q, want where it is", errs)
	}
	_, err := d.client.Get(t.Context(), "x")
	var p *admin.Problem
	if !errors.As(err, &p) || p.Type != admin.ProblemUnauthorized {
		t.Errorf("got %v, want a typed problem", err)
	}
	d.client.Admin = "http://127.0.0.1:1"
	if _, errs := d.want(t, 1, Parked, "list"); !strings.Contains(errs, "no daemon answers at http://127.0.0.1:1") {
		t.Errorf("without a daemon: got %q, want that none answers", errs)
	}
	d.client.Admin = d.client.Metrics
	if _, errs := d.want(t, 1, Parked, "list"); !strings.Contains(errs, "not inboxd's admin side") {
		t.Errorf("at the wrong address: got %q, want that it is", errs)
	}
}

func TestBaseURL(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		":9321": "http://127.0.0.1:9321", "0.0.0.0:9321": "http://127.0.0.1:9321", "[::]:9321": "http://[::1]:9321",
		"127.0.0.1:9321": "http://127.0.0.1:9321", "[::1]:80": "http://[::1]:80", "host:1": "http://host:1", "nonsense": "",
	} {
		if got, err := BaseURL(in); got != want || (err != nil) != (want == "") {
			t.Errorf("BaseURL(%q): got %q, %v, want %q", in, got, err, want)
		}
	}
}
