package sqlite

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/inboxd/inboxd/internal/inbox"
	"github.com/inboxd/inboxd/internal/store/storetest"
)

// The plan must not depend on how large the table was when it was last analysed.
func TestLookUpsProbeTheKey(t *testing.T) {
	t.Parallel()
	s := open(t, Options{Path: filepath.Join(t.TempDir(), "inboxd.db")})
	check := func(when string) {
		t.Helper()
		wantPlan(t, s, when, "SEARCH p USING PRIMARY KEY (consumer=? AND message_id=?)", lookUpSQL, 1, `["a"]`)
		wantPlan(t, s, when, "SEARCH processed USING COVERING INDEX processed_by_age (recorded_at<?)", deleteSQL, 1, 1)
		wantPlan(t, s, when, "SEARCH processed USING PRIMARY KEY (consumer=? AND message_id=?)", deleteSQL, 1, 1)
	}
	check("empty")
	_, err := s.write.ExecContext(t.Context(), "analyze")
	must(t, err)
	check("empty and analysed")
	_, err = s.write.ExecContext(t.Context(), `insert into processed
		with recursive n(i) as (select 1 union all select i + 1 from n where i < 20000)
		select 1, hex(i), null, i from n`)
	must(t, err)
	check("grown")
	_, err = s.write.ExecContext(t.Context(), "analyze")
	must(t, err)
	check("grown and analysed")
}

func wantPlan(t *testing.T, s *Store, when, want, query string, args ...any) {
	t.Helper()
	rows, err := s.write.QueryContext(t.Context(), "explain query plan "+query, args...)
	must(t, err)
	defer rows.Close()
	var plan []string
	for rows.Next() {
		var id, parent, unused int
		var detail string
		must(t, rows.Scan(&id, &parent, &unused, &detail))
		plan = append(plan, detail)
	}
	must(t, rows.Err())
	if got := strings.Join(plan, "\n"); !strings.Contains(got, want) || strings.Contains(got, "SCAN p") {
		t.Errorf("%s: got plan\n%s\nwant %s and no scan", when, got, want)
	}
}

func TestNewInboxIsSaidLoudlyAndKeepsItsIdentity(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "inboxd.db")
	var ids []string
	for _, want := range []string{"level=WARN msg=\"new inbox created", "level=INFO msg=\"inbox opened\""} {
		var out bytes.Buffer
		s, err := Open(t.Context(), Options{Path: path}, slog.New(slog.NewTextHandler(&out, nil)), prometheus.NewRegistry())
		must(t, err)
		must(t, s.Close())
		ids = append(ids, s.ID())
		if !strings.Contains(out.String(), want) {
			t.Errorf("log: got %s, want %s", out.String(), want)
		}
	}
	if ids[0] == "" || ids[0] != ids[1] {
		t.Errorf("identity: got %q, then %q, want the same", ids[0], ids[1])
	}
	info, err := os.Stat(path)
	must(t, err)
	if got := info.Mode().Perm(); got != 0o600 {
		t.Errorf("permissions: got %o, want 600: the file holds messages", got)
	}
}

// A clock that jumps ahead must not make everything old at once.
func TestClockJumpDeletesNothing(t *testing.T) {
	t.Parallel()
	s := open(t, Options{Path: filepath.Join(t.TempDir(), "inboxd.db"), Retention: time.Hour})
	must(t, s.Record(t.Context(), inbox.Claim{Key: key("a")}))
	// As if the youngest record at start were two hours old, by a clock that has
	// since jumped: nothing tells this from a long stop.
	s.base = s.base.Add(-2 * time.Hour)
	_, err := s.write.ExecContext(t.Context(), "update processed set recorded_at = recorded_at - 7200000")
	must(t, err)
	must(t, s.clean(t.Context()))
	if _, err := s.Lookup(t.Context(), key("a")); err != nil {
		t.Errorf("got %v, want the record kept", err)
	}
}

func TestLogIsBoundedAndWrittenBackWhenIdle(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "inboxd.db")
	s := open(t, Options{Path: path})
	var wg sync.WaitGroup
	stop, cancel := context.WithCancel(t.Context())
	wg.Go(func() { // look-ups all the while: they must not keep the log from being reset
		for stop.Err() == nil {
			_, _ = s.Claim(t.Context(), key("x"), inbox.Fingerprint{})
		}
	})
	for i := range 20 {
		must(t, s.Park(t.Context(), &inbox.ParkedMessage{
			Consumer: "c", State: inbox.StateParked,
			Message: inbox.Message{Body: bytes.Repeat([]byte{byte(i)}, 4<<20)},
		}))
	}
	cancel()
	wg.Wait()
	size := func() int64 {
		info, err := os.Stat(path + walSuffix)
		must(t, err)
		return info.Size()
	}
	if got := size(); got > walLimit+8<<20 {
		t.Errorf("log after 80 MiB: got %d bytes, want at most %d", got, walLimit+8<<20)
	}
	s.lastWrite.Store(0) // long ago
	s.checkpoint()
	if got := size(); got != 0 {
		t.Errorf("log of an idle store: got %d bytes, want 0", got)
	}
	must(t, s.Healthy(t.Context()))
}

func TestMetricsTellWhatHappened(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewPedanticRegistry()
	s, err := Open(t.Context(), Options{Path: filepath.Join(t.TempDir(), "inboxd.db"), Consumers: []string{storetest.Consumer, "mail"}},
		slog.New(slog.DiscardHandler), reg)
	must(t, err)
	defer s.Close()
	must(t, s.Park(t.Context(), &inbox.ParkedMessage{Consumer: storetest.Consumer, State: inbox.StateParked}))
	s.count(t.Context())
	s.metrics.Deleted(2)
	want := `
# HELP inboxd_parked_messages Messages kept in the store, parked or deferred, by consumer. Refreshed every few seconds.
# TYPE inboxd_parked_messages gauge
inboxd_parked_messages{consumer="billing"} 1
inboxd_parked_messages{consumer="mail"} 0
# HELP inboxd_records_deleted_total Records deleted because they were older than the retention.
# TYPE inboxd_records_deleted_total counter
inboxd_records_deleted_total 2
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "inboxd_parked_messages", "inboxd_records_deleted_total"); err != nil {
		t.Error(err)
	}
	if got, err := testutil.GatherAndCount(reg, "inboxd_store_errors_total"); err != nil || got != 9 {
		t.Errorf("error series at start: got %d, %v, want one an operation, 9", got, err)
	}
}

// A daemon that was killed while nothing happened leaves no log behind, but its
// mark, and `inboxd check` in between does not take that away.
func TestAnUncleanStopShowsAlsoWithoutALog(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "inboxd.db")
	s := open(t, Options{Path: path})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	must(t, s.Run(ctx))
	s.marked.Store(false) // killed: Close as the operating system does it
	must(t, s.Close())
	for range 2 {
		s = open(t, Options{Path: path})
		if !s.UncleanStop() {
			t.Error("after a daemon that did not take its mark away: got a clean stop")
		}
		must(t, s.Close())
	}
	s = open(t, Options{Path: path})
	s.mark(true)
	must(t, s.Close())
	if s = open(t, Options{Path: path}); s.UncleanStop() {
		t.Error("after the next one was closed: got an unclean stop")
	}
}

// TestAFailedWriteUndoesItselfAlone: writes share a transaction, and only the
// bad one of them fails.
func TestAFailedWriteUndoesItselfAlone(t *testing.T) {
	t.Parallel()
	s := open(t, Options{Path: filepath.Join(t.TempDir(), "inboxd.db")})
	bad := errors.New("bad")
	insert := func(key string, fails error) *write {
		return &write{do: func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "insert into meta values (?1, 'x')", key)
			return errors.Join(err, fails)
		}}
	}
	writes := []*write{insert("t1", nil), insert("t2", bad), insert("t3", nil), insert("t3", nil)}
	must(t, s.flushWrites(writes))
	if writes[0].err != nil || !errors.Is(writes[1].err, bad) || writes[2].err != nil || writes[3].err == nil {
		t.Errorf("got %v, %v, %v, %v, want success, bad, success and the broken uniqueness",
			writes[0].err, writes[1].err, writes[2].err, writes[3].err)
	}
	var n int
	must(t, s.desk.QueryRowContext(t.Context(), "select count(*) from meta where key in ('t1', 't2', 't3')").Scan(&n))
	if n != 2 {
		t.Errorf("got %d rows, want those of the first and the third", n)
	}
}
