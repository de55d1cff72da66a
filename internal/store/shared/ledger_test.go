package shared

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/inboxd/inboxd/internal/inbox"
	"github.com/inboxd/inboxd/internal/testenv"
)

var _ inbox.Ledger = (*Ledger)(nil)

var fp = inbox.Fingerprint{1, 2, 3, 4, 5, 6, 7, 8}

func TestClaimSeesWhatTheServiceCommitted(t *testing.T) {
	t.Parallel()
	u := testenv.DatabaseURL(t)
	conn := connect(t, u)
	execSQL(t, conn, ddl(t, SchemaOptions{}))
	l := open(t, Options{URL: u})
	if c := claim(t, l, "m1", fp); c.Status != inbox.ClaimNew || c.Fingerprint != fp || c.Key.ID != "m1" {
		t.Errorf("before: got %+v, want new", c)
	}
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `insert into inbox values ('billing', 'm1', $1, now() - interval '90 seconds')`, fp[:]); err != nil {
		t.Fatal(err)
	}
	if c := claim(t, l, "m1", fp); c.Status != inbox.ClaimNew {
		t.Errorf("before the commit: got %v, want new", c.Status)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := claim(t, l, "m1", fp)
	if c.Status != inbox.ClaimRecorded || c.Age < 90*time.Second || c.Age > 200*time.Second || time.Since(c.RecordedAt) > 200*time.Second {
		t.Errorf("after the commit: got %+v, want recorded 90s ago", c)
	}
	for _, other := range []inbox.Fingerprint{{}, {9}} {
		want := inbox.ClaimRecorded
		if !other.IsZero() {
			want = inbox.ClaimMismatch
		}
		if c := claim(t, l, "m1", other); c.Status != want {
			t.Errorf("fingerprint %s: got %v, want %v", other, c.Status, want)
		}
	}
	if _, err := l.Lookup(t.Context(), inbox.Key{Consumer: "shipping", ID: "m1"}); !errors.Is(err, inbox.ErrNotFound) {
		t.Errorf("another consumer: got %v, want %v", err, inbox.ErrNotFound)
	}
	if r, err := l.Lookup(t.Context(), c.Key); err != nil || r.Fingerprint != fp || r.Key != c.Key {
		t.Errorf("Lookup: got %+v, %v, want the record", r, err)
	}
}

func TestMessageIDsAreComparedByteForByte(t *testing.T) {
	t.Parallel()
	u := testenv.DatabaseURL(t)
	conn := connect(t, u)
	execSQL(t, conn, ddl(t, SchemaOptions{}))
	l := open(t, Options{URL: u})
	ids := []string{"a", "A", "a%20", "a ", "'; drop table inbox; --", `\`, "{}", `"`, "NULL", ",", strings.Repeat("x", 255)}
	for i, id := range ids {
		for _, later := range ids[i:] {
			if c := claim(t, l, later, fp); c.Status != inbox.ClaimNew {
				t.Errorf("%q after %q: got %v, want new", later, ids[:i], c.Status)
			}
		}
		execSQL(t, conn, `insert into inbox values ('billing', $1)`, id)
		if c := claim(t, l, id, fp); c.Status != inbox.ClaimRecorded {
			t.Errorf("%q: got %v, want recorded", id, c.Status)
		}
	}
}

func TestTableOfUUIDsKnowsNoOtherIDs(t *testing.T) {
	t.Parallel()
	u, _ := setUp(t, "uuidv7")
	execSQL(t, connect(t, u), `select inbox_claim('billing', $1)`, uuid1)
	l := open(t, Options{URL: u})
	for id, want := range map[string]inbox.ClaimStatus{
		uuid1: inbox.ClaimRecorded, strings.ToUpper(uuid1): inbox.ClaimRecorded, uuid2: inbox.ClaimNew,
		"order-1": inbox.ClaimNew, "{" + uuid1 + "}": inbox.ClaimNew, strings.Replace(uuid1, "-", "g", 1): inbox.ClaimNew,
	} {
		if c := claim(t, l, id, fp); c.Status != want {
			t.Errorf("%s: got %v, want %v", id, c.Status, want)
		}
	}
}

func TestEvidence(t *testing.T) {
	t.Parallel()
	u := testenv.DatabaseURL(t)
	conn := connect(t, u)
	execSQL(t, conn, ddl(t, SchemaOptions{}))
	execSQL(t, conn, `insert into inbox values ('billing', 'there', $1), ('billing', 'other', '\x0909090909090909')`, fp[:])
	for _, c := range []struct {
		evidence Evidence
		id       string
		want     error
		result   string
	}{
		{EvidenceRequire, "there", nil, "present"},
		{EvidenceRequire, "absent", inbox.ErrNoEvidence, "absent"},
		{EvidenceRequire, "other", inbox.ErrNoEvidence, "other_body"},
		{EvidenceWarn, "there", nil, "present"},
		{EvidenceWarn, "absent", nil, "absent"},
		{EvidenceWarn, "other", inbox.ErrNoEvidence, "other_body"},
		{EvidenceOff, "absent", nil, ""},
		{EvidenceOff, "other", nil, ""},
	} {
		t.Run(fmt.Sprintf("%s %s", c.evidence, c.id), func(t *testing.T) {
			reg := prometheus.NewRegistry()
			l, err := Open(t.Context(), Options{URL: u, Consumer: "billing", Evidence: c.evidence, Grace: -1}, slog.New(slog.DiscardHandler), reg)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			err = l.Record(t.Context(), inbox.Claim{Key: inbox.Key{Consumer: "billing", ID: inbox.MessageID(c.id)}, Fingerprint: fp})
			if !errors.Is(err, c.want) || (c.want == nil) != (err == nil) {
				t.Errorf("Record: got %v, want %v", err, c.want)
			}
			for r := range results {
				want := 0.0
				if r.String() == c.result {
					want = 1
				}
				if got := testutil.ToFloat64(l.metrics.evidence[r]); got != want {
					t.Errorf("inboxd_evidence_total{result=%q}: got %v, want %v", r, got, want)
				}
			}
		})
	}
}

// A handler may answer 202 and commit a little later.
func TestLateEvidenceIsWaitedFor(t *testing.T) {
	t.Parallel()
	u := testenv.DatabaseURL(t)
	conn := connect(t, u)
	execSQL(t, conn, ddl(t, SchemaOptions{}))
	reg := prometheus.NewRegistry()
	l, err := Open(t.Context(), Options{URL: u, Consumer: "billing", Grace: time.Minute}, slog.New(slog.DiscardHandler), reg)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	key := inbox.Key{Consumer: "billing", ID: "late"}
	recorded := make(chan error)
	go func() { recorded <- l.Record(t.Context(), inbox.Claim{Key: key}) }()
	for samples(t, reg, "inboxd_shared_inbox_batch_size") == 0 { // it has looked once
		select {
		case err := <-recorded:
			t.Fatalf("Record before the commit: got %v, want it to wait", err)
		case <-time.After(time.Millisecond):
		}
	}
	execSQL(t, conn, `insert into inbox values ('billing', 'late')`)
	if err := <-recorded; err != nil {
		t.Errorf("Record after the commit: got %v, want nil", err)
	}
	if got := testutil.ToFloat64(l.metrics.evidence[resultLate]); got != 1 {
		t.Errorf(`inboxd_evidence_total{result="late"}: got %v, want 1`, got)
	}

	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	err = l.Record(ctx, inbox.Claim{Key: inbox.Key{Consumer: "billing", ID: "never"}})
	if !errors.Is(err, context.Canceled) || errors.Is(err, inbox.ErrNoEvidence) {
		t.Errorf("Record given up: got %v, want an error that is no verdict", err)
	}
}

func TestConcurrentLookupsShareStatements(t *testing.T) {
	t.Parallel()
	u := testenv.DatabaseURL(t)
	conn := connect(t, u)
	execSQL(t, conn, ddl(t, SchemaOptions{}))
	execSQL(t, conn, `insert into inbox select 'billing', 'm' || n from generate_series(0, 999, 2) n`)
	reg := prometheus.NewRegistry()
	l, err := Open(t.Context(), Options{URL: u, Consumer: "billing"}, slog.New(slog.DiscardHandler), reg)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var wg sync.WaitGroup
	for n := range 1000 {
		wg.Go(func() {
			c, err := l.Claim(t.Context(), inbox.Key{Consumer: "billing", ID: inbox.MessageID(fmt.Sprintf("m%d", n))}, fp)
			if want := inbox.ClaimStatus((n + 1) % 2); err != nil || c.Status != want {
				t.Errorf("m%d: got %v, %v, want %v", n, c.Status, err, want)
			}
		})
	}
	wg.Wait()
	if n := samples(t, reg, "inboxd_shared_inbox_batch_size"); n > 500 {
		t.Errorf("statements for 1000 concurrent look-ups: got %d, want far fewer", n)
	}
}

// samples returns the number of observations of a histogram.
func samples(t *testing.T, reg *prometheus.Registry, name string) uint64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetHistogram().GetSampleCount()
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}

// The planner falls back to scanning where the statistics are those of an empty
// table; the look-up must not.
func TestLookupProbesTheIndexWhateverTheStatistics(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ schema, fill string }{
		"plain":  {ddl(t, SchemaOptions{}), `insert into inbox select 'billing', 'm' || n from generate_series(1, %d) n`},
		"uuidv7": {ddl(t, SchemaOptions{UUIDv7: true}), `insert into inbox select 'billing', (left(inbox_uuid_floor((now() at time zone 'utc')::date)::text, 14) || '7' || right(gen_random_uuid()::text, 21))::uuid from generate_series(1, %d)`},
		"view":   {strings.ReplaceAll(goodTable, "inbox", "r") + `create view inbox as select * from r`, `insert into r select 'billing', 'm' || n from generate_series(1, %d) n`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := testenv.DatabaseURL(t)
			conn := connect(t, u)
			execSQL(t, conn, c.schema)
			tab, findings, err := examine(t.Context(), Options{URL: u}.withDefaults())
			if err != nil || levels(findings, inbox.LevelFail) != "" {
				t.Fatalf("examine: %v %v", findings, err)
			}
			for _, step := range []string{"select 1", "analyze", fmt.Sprintf(c.fill, 100_000), "analyze", "delete from inbox; vacuum analyze", fmt.Sprintf(c.fill, 50_000)} {
				for _, sql := range strings.Split(step, ";") {
					execSQL(t, conn, sql)
				}
				if plan := explain(t, conn, tab, 500); strings.Contains(plan, "Seq Scan") || !strings.Contains(plan, "Index") {
					t.Errorf("after %q: got\n%swant only index probes", step, plan)
				}
			}
		})
	}
}

func explain(t *testing.T, conn *pgx.Conn, tab table, keys int) string {
	t.Helper()
	var consumers, ids []string
	for n := range keys {
		consumers = append(consumers, "billing")
		if tab.uuid {
			ids = append(ids, fmt.Sprintf("01934b2c-7c00-7000-8000-%012d", n))
		} else {
			ids = append(ids, fmt.Sprintf("m%d", n))
		}
	}
	var plan strings.Builder
	err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), prepare); err != nil {
			return err
		}
		rows, err := tx.Query(t.Context(), "explain (analyze, costs off, timing off) "+tab.probe(), pgx.QueryExecModeExec, consumers, ids)
		if err != nil {
			return err
		}
		var line string
		_, err = pgx.ForEachRow(rows, []any{&line}, func() error { plan.WriteString(line + "\n"); return nil })
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return plan.String()
}

func throughProxy(t *testing.T, u string) (string, *testenv.Proxy) {
	t.Helper()
	parsed, err := url.Parse(u)
	if err != nil {
		t.Fatal(err)
	}
	p, err := testenv.NewProxy(parsed.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	parsed.Host = p.Addr
	return parsed.String(), p
}

func TestFrozenOrCutDatabaseIsAnErrorInTimeAndForgotten(t *testing.T) {
	t.Parallel()
	u, proxy := throughProxy(t, testenv.DatabaseURL(t))
	execSQL(t, connect(t, u), ddl(t, SchemaOptions{}))
	l := open(t, Options{URL: u, Timeout: 500 * time.Millisecond})
	claim(t, l, "m1", fp)

	proxy.Pause()
	start := time.Now()
	_, err := l.Claim(t.Context(), inbox.Key{Consumer: "billing", ID: "m1"}, fp)
	if took := time.Since(start); err == nil || took > 5*time.Second {
		t.Errorf("frozen: got %v after %v, want an error after 500ms", err, took)
	}
	err = l.Record(t.Context(), inbox.Claim{Key: inbox.Key{Consumer: "billing", ID: "m1"}})
	if err == nil || errors.Is(err, inbox.ErrNoEvidence) {
		t.Errorf("Record while frozen: got %v, want an error that is no verdict", err)
	}
	proxy.Resume()
	eventually(t, l)

	proxy.Cut()
	eventually(t, l)
}

func TestTerminatedConnectionsAreReplaced(t *testing.T) {
	t.Parallel()
	u := testenv.DatabaseURL(t)
	conn := connect(t, u)
	execSQL(t, conn, ddl(t, SchemaOptions{}))
	l := open(t, Options{URL: u})
	claim(t, l, "m1", fp)
	execSQL(t, conn, `select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'inboxd' and datname = current_database()`)
	eventually(t, l)
	if err := l.Healthy(t.Context()); err != nil {
		t.Errorf("Healthy: got %v, want nil", err)
	}
}

// eventually waits until the ledger answers again.
func eventually(t *testing.T, l *Ledger) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		_, err := l.Claim(t.Context(), inbox.Key{Consumer: "billing", ID: "m1"}, fp)
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("Claim: got %v, want an answer by now", err)
		}
	}
}

func TestTableThatLosesItsKeyIsRefusedWhileRunning(t *testing.T) {
	t.Parallel()
	u := testenv.DatabaseURL(t)
	conn := connect(t, u)
	execSQL(t, conn, ddl(t, SchemaOptions{}))
	l := open(t, Options{URL: u})
	execSQL(t, conn, `alter table inbox drop constraint inbox_pkey`)
	l.examineAgain(t.Context())
	_, err := l.Claim(t.Context(), inbox.Key{Consumer: "billing", ID: "m1"}, fp)
	var refused *RefusedError
	if !errors.As(err, &refused) {
		t.Errorf("Claim without a key on the table: got %v, want a *RefusedError", err)
	}
	execSQL(t, conn, `alter table inbox add primary key (consumer, message_id)`)
	l.examineAgain(t.Context())
	claim(t, l, "m1", fp)
}

func TestRetentionDeletesOldRowsOfItsConsumerOnly(t *testing.T) {
	t.Parallel()
	u := testenv.DatabaseURL(t)
	conn := connect(t, u)
	execSQL(t, conn, ddl(t, SchemaOptions{}))
	execSQL(t, conn, `insert into inbox select c, 'old' || n, null, now() - interval '2 hours' from unnest(array['billing', 'shipping']) c, generate_series(1, 3000) n;
		insert into inbox select 'billing', 'new' || n from generate_series(1, 10) n`)
	l := open(t, Options{URL: u, Retention: time.Hour})
	left := func() (n int) {
		if err := conn.QueryRow(t.Context(), `select count(*) from inbox`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if pause := l.clean(t.Context()); pause >= cleanIdle || left() != 4010 {
		t.Errorf("first batch: got a pause of %v and %d rows left, want a short one and 4010", pause, left())
	}
	if pause := l.clean(t.Context()); pause != cleanIdle || left() != 3010 {
		t.Errorf("second batch: got a pause of %v and %d rows left, want %v and 3010", pause, left(), cleanIdle)
	}
	if got := testutil.ToFloat64(l.metrics.deleted); got != 3000 {
		t.Errorf("inboxd_shared_inbox_rows_deleted_total: got %v, want 3000", got)
	}
}

func TestLedgersOfTwoConsumersShareTheRegistry(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	a, b := newMetrics(reg, "billing"), newMetrics(reg, "shipping")
	a.evidence[resultAbsent].Inc()
	b.evidence[resultLate].Inc()
	err := testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP inboxd_evidence_total Looks for the row that a handler must leave before it answers 2xx, by consumer and result (present, late, absent, other_body).
# TYPE inboxd_evidence_total counter
inboxd_evidence_total{consumer="billing",result="absent"} 1
inboxd_evidence_total{consumer="billing",result="late"} 0
inboxd_evidence_total{consumer="billing",result="other_body"} 0
inboxd_evidence_total{consumer="billing",result="present"} 0
inboxd_evidence_total{consumer="shipping",result="absent"} 0
inboxd_evidence_total{consumer="shipping",result="late"} 1
inboxd_evidence_total{consumer="shipping",result="other_body"} 0
inboxd_evidence_total{consumer="shipping",result="present"} 0
`), "inboxd_evidence_total")
	if err != nil {
		t.Error(err)
	}
}

// leases is a ledger that keeps leases and old records in memory.
type leases struct {
	mu       sync.Mutex
	held     map[inbox.Key]bool
	recorded map[inbox.Key]bool
}

func (m *leases) Claim(_ context.Context, key inbox.Key, fp inbox.Fingerprint) (inbox.Claim, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := inbox.Claim{Key: key, Fingerprint: fp}
	switch {
	case m.recorded[key]:
		c.Status = inbox.ClaimRecorded
	case m.held[key]:
		c.Status = inbox.ClaimHeld
	default:
		m.held[key] = true
	}
	return c, nil
}

func (m *leases) ClaimAll(claims []*inbox.Claiming) {
	for _, c := range claims {
		c.Claim, c.Err = m.Claim(context.Background(), c.Key, c.Fingerprint)
	}
}

func (m *leases) Record(context.Context, inbox.Claim) error {
	panic("the row in the shared table is the only record")
}

func (m *leases) Release(c inbox.Claim) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.held, c.Key)
}

func TestLeasesKeepASecondReplicaWaiting(t *testing.T) {
	t.Parallel()
	u := testenv.DatabaseURL(t)
	conn := connect(t, u)
	execSQL(t, conn, ddl(t, SchemaOptions{}))
	before := inbox.Key{Consumer: "billing", ID: "before"}
	l := Lease(open(t, Options{URL: u, Grace: -1}), &leases{held: map[inbox.Key]bool{}, recorded: map[inbox.Key]bool{before: true}})

	expect := func(what, id string, want inbox.ClaimStatus) inbox.Claim {
		t.Helper()
		c := claim(t, l, id, fp)
		if c.Status != want {
			t.Errorf("%s: got %v, want %v", what, c.Status, want)
		}
		return c
	}
	expect("recorded in ledger mode", "before", inbox.ClaimRecorded)
	c := expect("first", "m1", inbox.ClaimNew)
	expect("while it is held", "m1", inbox.ClaimHeld)
	if err := l.Record(t.Context(), c); !errors.Is(err, inbox.ErrNoEvidence) {
		t.Errorf("Record without a row: got %v, want %v", err, inbox.ErrNoEvidence)
	}
	expect("after a failed record", "m1", inbox.ClaimHeld)
	l.Release(c)
	c = expect("after the release", "m1", inbox.ClaimNew)
	execSQL(t, conn, `insert into inbox values ('billing', 'm1')`)
	if err := l.Record(t.Context(), c); err != nil {
		t.Errorf("Record: got %v, want nil", err)
	}
	expect("recorded", "m1", inbox.ClaimRecorded)
	expect("recorded, asked again: the lease of the first was given up", "m1", inbox.ClaimRecorded)
}
