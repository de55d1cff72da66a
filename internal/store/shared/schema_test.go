package shared

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/inboxd/inboxd/internal/testenv"
)

const (
	uuid1 = "01934b2c-7c00-7000-8000-000000000001" // of 20 November 2024
	uuid2 = "01934b2c-7c00-7000-8000-000000000002"
)

// variants are the schemas that the command prints, and what makes uuid1's day
// exist in them.
var variants = map[string]struct {
	options SchemaOptions
	days    string
}{
	"plain":          {SchemaOptions{}, ""},
	"uuidv7":         {SchemaOptions{UUIDv7: true}, "select inbox_create_partitions('2024-11-01', '2024-11-30')"},
	"quoted, schema": {SchemaOptions{Table: `app."In'box 100%"`}, ""},
	"uuidv7 quoted":  {SchemaOptions{Table: `app."In'box 100%"`, UUIDv7: true}, "select app.inbox_create_partitions('2024-11-01', '2024-11-30')"},
}

func setUp(t *testing.T, variant string) (url, claimFunction string) {
	t.Helper()
	v := variants[variant]
	url = testenv.DatabaseURL(t)
	conn := connect(t, url)
	execSQL(t, conn, "create schema app")
	for range 2 { // running it again must change nothing
		execSQL(t, conn, ddl(t, v.options))
	}
	if v.days != "" {
		execSQL(t, conn, v.days)
	}
	claimFunction = "inbox_claim"
	if strings.HasPrefix(v.options.Table, "app.") {
		claimFunction = "app.inbox_claim"
	}
	return url, claimFunction
}

func TestClaimFunctionSaysGoOnOnce(t *testing.T) {
	t.Parallel()
	for name, v := range variants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, fn := setUp(t, name)
			conn := connect(t, url)
			ask := func(consumer, id string, fingerprint any) (first bool, code string) {
				err := conn.QueryRow(t.Context(), "select "+fn+"($1, $2, $3)", consumer, id, fingerprint).Scan(&first)
				var pg *pgconn.PgError
				if errors.As(err, &pg) {
					return false, pg.Code
				} else if err != nil {
					t.Fatalf("inbox_claim: %v", err)
				}
				return first, ""
			}
			for _, c := range []struct {
				consumer, id string
				fingerprint  any
				first        bool
				code         string
			}{
				{"billing", uuid1, "00ff00ff00ff00ff", true, ""},
				{"billing", uuid1, "00ff00ff00ff00ff", false, ""},
				{"billing", uuid1, nil, false, ""},
				{"billing", uuid1, "", false, ""},
				{"billing", uuid1, "1111111111111111", false, "IB422"},
				{"shipping", uuid1, "1111111111111111", true, ""},
				{"billing", uuid2, nil, true, ""},
				{"billing", uuid2, "1111111111111111", false, ""},
			} {
				first, code := ask(c.consumer, c.id, c.fingerprint)
				if first != c.first || code != c.code {
					t.Errorf("inbox_claim(%s, %s, %v): got %v %q, want %v %q",
						c.consumer, c.id, c.fingerprint, first, code, c.first, c.code)
				}
			}
			if v.options.UUIDv7 {
				if _, code := ask("billing", "a0ee0000-7c00-4000-8000-000000000001", nil); code != "23514" {
					t.Errorf("a UUID of version 4: got SQLSTATE %q, want 23514", code)
				}
			}
			if two := "select " + fn + "('billing', '" + uuid1 + "')"; true {
				var first bool
				if err := conn.QueryRow(t.Context(), two).Scan(&first); err != nil || first {
					t.Errorf("without a fingerprint: got %v, %v, want false", first, err)
				}
			}
		})
	}
}

// Of many transactions with one key at once exactly one has an effect, and none
// is told that the message is done before the effect is committed.
func TestClaimFunctionUnderConcurrency(t *testing.T) {
	t.Parallel()
	for name := range variants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, fn := setUp(t, name)
			execSQL(t, connect(t, url), "create table effect (id text)")
			const keys, rivals = 20, 6
			var effects, early atomic.Int32
			var wg sync.WaitGroup
			for r := range rivals {
				conn := connect(t, url)
				wg.Go(func() {
					for k := range keys {
						id := fmt.Sprintf("01934b2c-7c00-7000-8000-%012d", k)
						rollBack := r == 0 && k%3 == 0 // a handler that fails
						err := pgx.BeginFunc(context.Background(), conn, func(tx pgx.Tx) error {
							var first bool
							if err := tx.QueryRow(context.Background(), "select "+fn+"('billing', $1)", id).Scan(&first); err != nil {
								return err
							}
							if !first {
								var n int
								if err := tx.QueryRow(context.Background(), "select count(*) from effect where id = $1", id).Scan(&n); err != nil {
									return err
								}
								if n != 1 {
									early.Add(1)
								}
								return nil
							}
							if _, err := tx.Exec(context.Background(), "insert into effect values ($1)", id); err != nil {
								return err
							}
							if rollBack {
								return errRollBack
							}
							effects.Add(1)
							return nil
						})
						if err != nil && !errors.Is(err, errRollBack) {
							t.Errorf("key %d: %v", k, err)
						}
					}
				})
			}
			wg.Wait()
			if got := effects.Load(); got != keys {
				t.Errorf("effects: got %d, want %d", got, keys)
			}
			if got := early.Load(); got != 0 {
				t.Errorf("told done without an effect: got %d, want 0", got)
			}
		})
	}
}

var errRollBack = errors.New("roll back")

func TestSchemaGrantsOnlyWhatIsAskedFor(t *testing.T) {
	t.Parallel()
	url := testenv.DatabaseURL(t)
	conn := connect(t, url)
	role := testenv.UniqueName("Reader")
	execSQL(t, conn, fmt.Sprintf("create role %q", role))
	t.Cleanup(func() { dropRole(t, url, role) })
	rights := func() (rights string) {
		err := conn.QueryRow(t.Context(), `select string_agg(p, ' ' order by p) from unnest(array['select','insert','update','delete','truncate']) p
			where has_table_privilege($1, 'inbox', p)`, role).Scan(&rights)
		if err != nil {
			t.Fatal(err)
		}
		return rights
	}
	execSQL(t, conn, ddl(t, SchemaOptions{Role: role}))
	if got, want := rights(), "select"; got != want {
		t.Errorf("rights: got %q, want %q", got, want)
	}
	execSQL(t, conn, ddl(t, SchemaOptions{Role: role, Retention: true}))
	if got, want := rights(), "delete select"; got != want {
		t.Errorf("rights with retention: got %q, want %q", got, want)
	}
}

func TestSchemaCommand(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"", 0, `create table if not exists "inbox"`},
		{"--uuidv7 --table App.Inbox --role reader", 0, `grant select on "app"."inbox" to "reader";`},
		{"--retention", 2, "needs the role"},
		{"--uuidv7 --retention --role r", 2, "dropping a partition"},
		{"--table a.b.c", 2, "want NAME or SCHEMA.NAME"},
		{"--table in-box", 2, "double quotes"},
		{"--mysql", 2, "not defined"},
		{"surplus", 2, "unexpected argument"},
		{"-h", 0, "usage: inboxd schema shared"},
	} {
		var out strings.Builder
		if code := SchemaMain(strings.Fields(c.args), &out, &out); code != c.code || !strings.Contains(out.String(), c.want) {
			t.Errorf("schema shared %s: got exit code %d, want %d with %q in:\n%s", c.args, code, c.code, c.want, out.String())
		}
	}
}

func TestParseTable(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"inbox": `"inbox"`, "App.Inbox": `"app"."inbox"`, `"App"."In""box.x"`: `"App"."In""box.x"`, "a$1": `"a$1"`,
		"": "", "a.": "", ".a": "", "a.b.c": "", `"a`: "", `"a"b`: "", "a b": "", `""`: "", "1a": "", "a;drop": "",
		strings.Repeat("x", 64): "",
	} {
		got := ""
		if name, err := parseTable(in); err == nil {
			got = name.Sanitize()
		}
		if got != want {
			t.Errorf("parseTable(%q): got %q, want %q", in, got, want)
		}
	}
}

func FuzzParseTable(f *testing.F) {
	for _, s := range []string{"inbox", `"a""b".c`, `a.b`, `"`, `".".""`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		name, err := parseTable(s)
		if err != nil {
			return
		}
		again, err := parseTable(name.Sanitize())
		if err != nil || again.Sanitize() != name.Sanitize() {
			t.Errorf("parseTable(%q) = %q, which reads as %q, %v", s, name.Sanitize(), again.Sanitize(), err)
		}
	})
}
