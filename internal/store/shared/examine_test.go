package shared

import (
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/inboxd/inboxd/internal/inbox"
	"github.com/inboxd/inboxd/internal/testenv"
)

const goodTable = `create table inbox (consumer text collate "C", message_id text collate "C", fingerprint bytea,
	created_at timestamptz not null default now(), primary key (consumer, message_id));`

// levels names what an examination found: "" where nothing fails or warns.
func levels(findings []inbox.Finding, level string) string {
	var b strings.Builder
	for _, f := range findings {
		if f.Level == level {
			fmt.Fprintf(&b, "%s: %s => %s\n", f.Subject, f.Detail, f.Remedy)
		}
	}
	return b.String()
}

func TestTablesThatKeepThePromiseAreTaken(t *testing.T) {
	t.Parallel()
	db := testenv.DatabaseURL(t)
	for name, sql := range map[string]string{
		"the printed schema":    ddl(t, SchemaOptions{}),
		"the uuidv7 schema":     ddl(t, SchemaOptions{UUIDv7: true}),
		"key the other way":     strings.Replace(goodTable, "(consumer, message_id)", "(message_id, consumer)", 1),
		"unique index included": `create table inbox (consumer text, message_id varchar(255), fingerprint bytea, created_at timestamptz, extra text); create unique index on inbox (consumer, message_id) include (created_at);`,
		"another key beside":    goodTable + `create unique index part on inbox (consumer, message_id) where consumer = 'x';`,
		"a domain":              `create domain msgid as text; ` + strings.Replace(goodTable, `message_id text collate "C"`, "message_id msgid", 1),
		"hash partitions": strings.Replace(goodTable, ";", " partition by hash (message_id);", 1) +
			`create table p0 partition of inbox for values with (modulus 1, remainder 0);`,
		"a plain view": strings.ReplaceAll(goodTable, "table inbox", "table real_inbox") +
			`create view inbox as select created_at, fingerprint, message_id, consumer from real_inbox;`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := inSchema(t, db)
			execSQL(t, connect(t, u), sql)
			findings := Examine(t.Context(), Options{URL: u, Consumer: "billing"})
			if bad := levels(findings, inbox.LevelFail) + levels(findings, inbox.LevelWarn); bad != "" {
				t.Errorf("got\n%swant nothing to complain about", bad)
			}
			open(t, Options{URL: u})
		})
	}
}

func TestTablesThatCannotKeepThePromiseAreRefused(t *testing.T) {
	t.Parallel()
	db := testenv.DatabaseURL(t)
	const nondeterministic = `create collation nd (provider = icu, locale = 'und-u-ks-level2', deterministic = false);`
	for name, c := range map[string]struct{ sql, detail, remedy string }{
		"no table":           {``, "no such table", "inboxd schema shared"},
		"no key":             {strings.Replace(goodTable, ", primary key (consumer, message_id)", "", 1), "no unique key", "add primary key (consumer, message_id)"},
		"key on one column":  {strings.Replace(goodTable, "(consumer, message_id)", "(message_id)", 1), "no unique key", "add primary key"},
		"key on three":       {strings.Replace(goodTable, "(consumer, message_id)", "(consumer, message_id, created_at)", 1), "no unique key", "add primary key"},
		"index not unique":   {strings.Replace(goodTable, ", primary key (consumer, message_id)", "", 1) + `create index on inbox (consumer, message_id);`, "no unique key", "add primary key"},
		"expression index":   {strings.Replace(goodTable, ", primary key (consumer, message_id)", "", 1) + `create unique index on inbox (consumer, lower(message_id));`, "no unique key", "add primary key"},
		"partial index":      {strings.Replace(goodTable, ", primary key (consumer, message_id)", "", 1) + `create unique index half on inbox (consumer, message_id) where created_at > '2020-01-01';`, "half is partial", "add primary key"},
		"deferrable key":     {strings.Replace(goodTable, "(consumer, message_id)", "(consumer, message_id) deferrable", 1), "deferrable", "add primary key"},
		"invalid index":      {strings.Replace(goodTable, ", primary key (consumer, message_id)", "", 1) + `create unique index broken on inbox (consumer, message_id); update pg_index set indisvalid = false where indexrelid = 'broken'::regclass;`, "broken is not valid", "add primary key"},
		"collation of ID":    {nondeterministic + strings.Replace(goodTable, `message_id text collate "C"`, `message_id text collate nd`, 1), "nondeterministic collation nd", `collate "C"`},
		"collation of index": {nondeterministic + strings.Replace(goodTable, ", primary key (consumer, message_id)", "", 1) + `create unique index folded on inbox (consumer, message_id collate nd);`, "folded has a nondeterministic collation", "add primary key"},
		"padded type":        {strings.Replace(goodTable, `message_id text collate "C"`, `message_id char(255)`, 1), "character(255)", "type text"},
		"no consumer":        {`create table inbox (message_id text primary key, fingerprint bytea);`, "no column consumer", "inboxd schema shared"},
		"text fingerprint":   {strings.Replace(goodTable, "fingerprint bytea", "fingerprint text", 1), "want bytea", "using decode"},
		"unlogged":           {strings.Replace(goodTable, "create table", "create unlogged table", 1), "unlogged", "set logged"},
		"children":           {goodTable + `create table child () inherits (inbox);`, "child tables", "partitioned"},
		"materialized view":  {strings.Replace(goodTable, "inbox", "r", 1) + `create materialized view inbox as select * from r;`, "the past", "the table itself"},
		"filtering view":     {strings.Replace(goodTable, "inbox", "r", 1) + `create view inbox as select * from r where created_at > now() - interval '1 day';`, "every row", "name the table itself"},
		"joining view":       {strings.Replace(goodTable, "inbox", "r", 1) + `create view inbox as select r.* from r, pg_class;`, "every row", "name the table itself"},
		"view of no key":     {`create table r (consumer text, message_id text, fingerprint bytea, created_at timestamptz); create view inbox as select * from r;`, "no unique key", "add primary key"},
		"a sequence":         {`create sequence inbox;`, "no table", "inboxd schema shared"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := inSchema(t, db)
			if c.sql != "" {
				execSQL(t, connect(t, u), c.sql)
			}
			o := Options{URL: u, Consumer: "billing"}
			got := levels(Examine(t.Context(), o), inbox.LevelFail)
			if !strings.Contains(got, c.detail) || !strings.Contains(got, c.remedy) {
				t.Errorf("got\n%swant %q with the remedy %q", got, c.detail, c.remedy)
			}
			_, err := Open(t.Context(), o, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
			var refused *RefusedError
			if !errors.As(err, &refused) {
				t.Errorf("Open: got %v, want a *RefusedError", err)
			}
		})
	}
}

// login makes a role that owns nothing and returns the URL to log in with.
func login(t *testing.T, u, grants string) string {
	t.Helper()
	conn := connect(t, u)
	role := testenv.UniqueName("r")
	execSQL(t, conn, "create role "+role+" login password 'private'")
	t.Cleanup(func() {
		dropRole(t, u, role)
	})
	if grants != "" {
		execSQL(t, conn, strings.ReplaceAll(grants, "ROLE", role))
	}
	parsed, err := url.Parse(u)
	if err != nil {
		t.Fatal(err)
	}
	parsed.User = url.UserPassword(role, "private")
	return parsed.String()
}

func TestPrivilegesAreChecked(t *testing.T) {
	t.Parallel()
	db := testenv.DatabaseURL(t)
	for name, c := range map[string]struct {
		grants string
		o      Options
		fail   string
	}{
		"none":                        {"", Options{}, "grant select"},
		"select":                      {"grant select on inbox to ROLE", Options{}, ""},
		"one column short":            {"grant select (consumer, message_id, created_at) on inbox to ROLE", Options{}, "column fingerprint"},
		"retention without DELETE":    {"grant select on inbox to ROLE", Options{Retention: time.Hour}, "grant delete"},
		"retention with DELETE":       {"grant select, delete on inbox to ROLE", Options{Retention: time.Hour}, ""},
		"row level security":          {"grant select on inbox to ROLE; alter table inbox enable row level security", Options{}, "row level security"},
		"a schema that is not usable": {"create schema closed; alter table inbox set schema closed; grant select on closed.inbox to ROLE", Options{Table: "closed.inbox"}, "grant usage on schema"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := inSchema(t, db)
			execSQL(t, connect(t, u), goodTable)
			c.o.URL, c.o.Consumer = login(t, u, c.grants), "billing"
			got := levels(Examine(t.Context(), c.o), inbox.LevelFail)
			if c.fail == "" && got != "" || !strings.Contains(got, c.fail) {
				t.Errorf("got %q, want %q", got, c.fail)
			}
			if c.fail == "" {
				c.o.Table = "inbox"
				if c := claim(t, open(t, c.o), "m1", inbox.Fingerprint{}); c.Status != inbox.ClaimNew {
					t.Errorf("Claim: got %v, want new", c.Status)
				}
			}
		})
	}
}

func TestViewNeedsNoRightsOnItsTable(t *testing.T) {
	t.Parallel()
	u := testenv.DatabaseURL(t)
	execSQL(t, connect(t, u), goodTable+
		`insert into inbox values ('billing', 'm1', null); create view inboxd_seen as select * from inbox`)
	l := open(t, Options{URL: login(t, u, "grant select on inboxd_seen to ROLE"), Table: "inboxd_seen"})
	if c := claim(t, l, "m1", inbox.Fingerprint{}); c.Status != inbox.ClaimRecorded {
		t.Errorf("Claim: got %v, want recorded", c.Status)
	}
}

func TestMissingColumnsAreOnlyAWarning(t *testing.T) {
	t.Parallel()
	u := testenv.DatabaseURL(t)
	execSQL(t, connect(t, u), `create table inbox (consumer text, message_id varchar(40), primary key (consumer, message_id));
		insert into inbox values ('billing', 'm1')`)
	o := Options{URL: u, Consumer: "billing"}
	warnings := levels(Examine(t.Context(), o), inbox.LevelWarn)
	for _, want := range []string{"no column fingerprint", "no column created_at", "character varying(40)"} {
		if !strings.Contains(warnings, want) {
			t.Errorf("got\n%swant %q", warnings, want)
		}
	}
	c := claim(t, open(t, o), "m1", inbox.Fingerprint{1})
	if c.Status != inbox.ClaimRecorded || c.Age != 0 || !c.RecordedAt.IsZero() {
		t.Errorf("got %+v, want recorded at an unknown time", c)
	}
}

func TestStandbyIsRefusedAtStartAndAfterwards(t *testing.T) {
	t.Parallel()
	testenv.DatabaseURL(t) // skips where there is no PostgreSQL
	pg, err := testenv.StartPostgres(testenv.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pg.Stop() })
	execSQL(t, connect(t, pg.URL), goodTable)
	o := Options{URL: pg.URL, Consumer: "billing"}
	l := open(t, o)
	claim(t, l, "m1", inbox.Fingerprint{})

	if err := pg.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(pg.Dir, "data", "standby.signal"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := pg.Restart(); err != nil {
		t.Fatal(err)
	}
	if got := levels(Examine(t.Context(), o), inbox.LevelFail); !strings.Contains(got, "standby") || !strings.Contains(got, "primary") {
		t.Errorf("Examine: got %q, want a standby refused", got)
	}
	for range 3 {
		if c, err := l.Claim(t.Context(), inbox.Key{Consumer: "billing", ID: "m1"}, inbox.Fingerprint{}); err == nil {
			t.Fatalf("Claim on a standby: got %+v, want an error", c)
		}
	}

	if err := pg.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(pg.Dir, "data", "standby.signal")); err != nil {
		t.Fatal(err)
	}
	if err := pg.Restart(); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(10 * time.Second)
	for {
		_, err := l.Claim(t.Context(), inbox.Key{Consumer: "billing", ID: "m1"}, inbox.Fingerprint{})
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("Claim on the primary again: got %v, want an answer", err)
		}
	}
}

func TestUnreachableDatabaseIsNotARefusal(t *testing.T) {
	t.Parallel()
	o := Options{URL: "postgres://nobody:secret@127.0.0.1:1/x?sslmode=disable", Consumer: "billing"}
	_, err := Open(t.Context(), o, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	var refused *RefusedError
	if err == nil || errors.As(err, &refused) || strings.Contains(err.Error(), "secret") {
		t.Errorf("Open: got %v, want an error about the connection, without the password", err)
	}
	if got := levels(Examine(t.Context(), o), inbox.LevelFail); !strings.Contains(got, "inbox.url") {
		t.Errorf("Examine: got %q, want a finding with the remedy", got)
	}
}
