package postgres

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/inboxd/inboxd/internal/inbox"
	"github.com/inboxd/inboxd/internal/testenv"
)

// The server may mark messages as ours in a call whose answer never came. They
// must not wait for the end of the process.
func TestMessagesTakenByALostCallAreHandedOver(t *testing.T) {
	t.Parallel()
	url := testenv.DatabaseURL(t)
	s, other := open(t, Options{URL: url}), open(t, Options{URL: url})
	m := &inbox.ParkedMessage{Consumer: "c", State: inbox.StateDeferred, Due: time.Now().Add(-time.Second)}
	must(t, s.Park(t.Context(), m))
	admin(t, url, "update inboxd.parked set taken_by = $1::text::uuid", s.owner)

	wantTaken := func(what string, s *Store, want int) {
		t.Helper()
		if got, err := s.TakeDue(t.Context(), "c", 5); err != nil || len(got) != want {
			t.Errorf("%s: got %d, %v, want %d", what, len(got), err, want)
		}
	}
	wantTaken("by another", other, 0)
	wantTaken("by its owner", s, 1)
	wantTaken("once more", s, 0)
	must(t, s.PutBack(t.Context(), m.ID, time.Now().Add(-time.Second)))
	wantTaken("put back", s, 1)
	wantTaken("and once more", s, 0)
}

// A commit can fail after every statement of it has succeeded.
func TestARecordWhoseCommitFailsIsAnError(t *testing.T) {
	t.Parallel()
	url := testenv.DatabaseURL(t)
	s := open(t, Options{URL: url})
	conn, err := pgx.Connect(t.Context(), url)
	must(t, err)
	defer conn.Close(context.Background())
	_, err = conn.Exec(t.Context(), `create function inboxd.no() returns trigger language plpgsql as
		$$ begin raise exception 'not at all' using errcode = 'P0001'; end $$;
		create constraint trigger no after insert on inboxd.processed deferrable initially deferred
		for each row execute function inboxd.no()`, pgx.QueryExecModeSimpleProtocol)
	must(t, err)
	for range 2 { // with and without cached statements
		if err := s.Record(t.Context(), inbox.Claim{Key: key("k")}); err == nil {
			t.Error("got no error, want that of the commit")
		}
	}
}
