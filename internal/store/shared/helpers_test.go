package shared

import (
	"context"
	"log/slog"
	"net/url"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/inboxd/inboxd/internal/inbox"
	"github.com/inboxd/inboxd/internal/testenv"
)

// connect opens a connection that is closed when the test ends.
func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatalf("connecting: %v", err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func execSQL(t *testing.T, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	var err error
	if len(args) == 0 {
		_, err = conn.PgConn().Exec(t.Context(), sql).ReadAll() // several statements
	} else {
		_, err = conn.Exec(t.Context(), sql, args...)
	}
	if err != nil {
		t.Fatalf("executing: %v\n%s", err, sql)
	}
}

func ddl(t *testing.T, o SchemaOptions) string {
	t.Helper()
	s, err := Schema(o)
	if err != nil {
		t.Fatalf("Schema(%+v): %v", o, err)
	}
	return s
}

// open opens a ledger that is closed when the test ends.
func open(t *testing.T, o Options) *Ledger {
	t.Helper()
	if o.Consumer == "" {
		o.Consumer = "billing"
	}
	l, err := Open(t.Context(), o, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func claim(t *testing.T, l inbox.Ledger, id string, fp inbox.Fingerprint) inbox.Claim {
	t.Helper()
	c, err := l.Claim(t.Context(), inbox.Key{Consumer: "billing", ID: inbox.MessageID(id)}, fp)
	if err != nil {
		t.Fatalf("Claim(%s): %v", id, err)
	}
	return c
}

// dropRole works after the test's context has ended.
func dropRole(t *testing.T, url, role string) {
	t.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Errorf("connecting: %v", err)
		return
	}
	defer conn.Close(ctx)
	quoted := pgx.Identifier{role}.Sanitize()
	for _, sql := range []string{"drop owned by " + quoted, "drop role " + quoted} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			t.Errorf("%s: %v", sql, err)
		}
	}
}

// inSchema returns a URL of the database db under which names without a schema
// are those of a new schema: much cheaper than a database of its own.
func inSchema(t *testing.T, db string) string {
	t.Helper()
	name := testenv.UniqueName("s")
	execSQL(t, connect(t, db), "create schema "+name+"; grant usage on schema "+name+" to public")
	u, err := url.Parse(db)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("search_path", name)
	u.RawQuery = q.Encode()
	return u.String()
}
