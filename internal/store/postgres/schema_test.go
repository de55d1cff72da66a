package postgres

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/inboxd/inboxd/internal/inbox"
	"github.com/inboxd/inboxd/internal/store"
	"github.com/inboxd/inboxd/internal/testenv"
)

func script(t testing.TB, url, sql string) {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), url)
	must(t, err)
	defer conn.Close(context.Background())
	_, err = conn.PgConn().Exec(context.Background(), sql).ReadAll()
	must(t, err)
}

// A database owner may create the schema, and give inboxd no more than it needs.
func TestSchemaAppliedByHandServesAnUnprivilegedUser(t *testing.T) {
	t.Parallel()
	owner := testenv.DatabaseURL(t)
	role := testenv.UniqueName("inboxd_role")
	script(t, owner, "create role "+role+" login password 'private'")
	t.Cleanup(func() { script(t, owner, "drop owned by "+role+"; drop role "+role) })
	u, err := url.Parse(owner)
	must(t, err)
	u.User = url.UserPassword(role, "private")

	_, err = Open(t.Context(), Options{URL: u.String()}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if !errors.Is(err, store.ErrSetup) || !strings.Contains(err.Error(), "inboxd schema ledger") {
		t.Errorf("without privileges: got %v, want %v with the remedy", err, store.ErrSetup)
	}
	wantFinding(t, u.String(), inbox.LevelFail, "may not create one")
	wantFinding(t, owner, inbox.LevelWarn, "there is no schema")
	wantFinding(t, owner, inbox.LevelWarn, "there is no schema") // the first look has made none
	script(t, owner, Schema())
	script(t, owner, "grant usage on schema inboxd to "+role+"; grant select on all tables in schema inboxd to "+role)
	wantFinding(t, u.String(), inbox.LevelFail, "no privileges on [processed lease owner parked audit paused]")
	script(t, owner, "grant insert, update, delete on all tables in schema inboxd to "+role)
	s := open(t, Options{URL: u.String()})
	must(t, s.Record(t.Context(), inbox.Claim{Key: key("a")}))
	wantStatus(t, s, key("a"), inbox.ClaimRecorded)
	for _, f := range s.Examine(t.Context()) {
		if f.Level == inbox.LevelFail {
			t.Errorf("Examine: got %+v", f)
		}
	}
}

// wantFinding checks the last thing that Check tells.
func wantFinding(t *testing.T, url, level, detail string) {
	t.Helper()
	got, err := Check(t.Context(), Options{URL: url})
	if err != nil {
		t.Fatalf("Check: %v", err)
	}
	if last := got[len(got)-1]; last.Level != level || !strings.Contains(last.Detail, detail) {
		t.Errorf("Check: got %+v, want level %q and %q", last, level, detail)
	}
}

func TestNewerSchemaIsRefusedUnlessItSaysOtherwise(t *testing.T) {
	t.Parallel()
	url := testenv.DatabaseURL(t)
	id := open(t, Options{URL: url}).ID()
	admin(t, url, "insert into inboxd.migration (version, name) values (99, 'future')")
	if got := open(t, Options{URL: url}).ID(); got != id || id == "" {
		t.Errorf("identity: got %q, then %q, want the same", id, got)
	}
	admin(t, url, "update inboxd.meta set value = '99' where key = 'min_version'")
	_, err := Open(t.Context(), Options{URL: url}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if !errors.Is(err, store.ErrSetup) || !strings.Contains(err.Error(), "newer inboxd") {
		t.Errorf("got %v, want %v", err, store.ErrSetup)
	}
	wantFinding(t, url, inbox.LevelFail, "newer inboxd")
}

// The cleaner works in batches, alone, and by both clocks.
func TestRetentionDeletesInBatchesUnderALock(t *testing.T) {
	t.Parallel()
	s := open(t, Options{URL: testenv.DatabaseURL(t), Retention: time.Hour})
	admin(t, s.opts.URL, `insert into inboxd.processed (consumer, message_id, processed_at)
		select 'c', n::text, now() - interval '61 minutes' from generate_series(1, 250) n`)
	admin(t, s.opts.URL, "insert into inboxd.processed (consumer, message_id, processed_at) values ('c', 'young', now() - interval '59 minutes')")

	conn, err := pgx.Connect(t.Context(), s.opts.URL)
	must(t, err)
	defer conn.Close(context.Background())
	_, err = conn.Exec(t.Context(), "select pg_advisory_lock($1)", int64(cleanerLock))
	must(t, err)
	if n, ours, err := s.cleanBatch(t.Context(), 100); err != nil || ours || n != 0 {
		t.Errorf("while another cleans: got %d, %v, %v, want nothing done", n, ours, err)
	}
	_, err = conn.Exec(t.Context(), "select pg_advisory_unlock($1)", int64(cleanerLock))
	must(t, err)
	for _, want := range []int64{100, 100, 50, 0} {
		if n, ours, err := s.cleanBatch(t.Context(), 100); err != nil || !ours || n != want {
			t.Errorf("got %d, %v, %v, want %d deleted", n, ours, err, want)
		}
	}
}
