package postgres

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/inboxd/inboxd/internal/inbox"
)

// Check examines the place of a store, as Examine does, and changes nothing there:
// it creates no schema, and the sign of an unclean stop is left to the daemon that
// starts next. Its errors are those of Open.
func Check(ctx context.Context, opts Options) ([]inbox.Finding, error) {
	s, err := newStore(opts, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	defer s.closePools()
	if err := s.connect(ctx); err != nil {
		return nil, fmt.Errorf("opening %s: %w", s.where, setupError(err))
	}
	return s.Examine(ctx), nil
}

// Examine tells what a person should know about the store.
func (s *Store) Examine(ctx context.Context) []inbox.Finding {
	subject := "store " + s.where
	findings, err := s.examineServer(ctx)
	if err == nil {
		var more []inbox.Finding
		more, err = s.examineSchema(ctx)
		findings = append(findings, more...)
	}
	if err != nil {
		findings = append(findings, inbox.Finding{Level: inbox.LevelFail, Subject: subject, Detail: err.Error(), Remedy: "see the message"})
	}
	return findings
}

// examineServer looks at what decides what a commit is worth, and where we are.
func (s *Store) examineServer(ctx context.Context) ([]inbox.Finding, error) {
	subject := "store " + s.where
	var version, fsync, pages, sync string
	var standby bool
	var clock time.Time
	err := s.try(ctx, s.desk, s.opts.CallTime, func(ctx context.Context, conn *pgx.Conn) error {
		// The session's own synchronous_commit is ours; pg_settings has the server's.
		return conn.QueryRow(ctx, `select current_setting('server_version'), current_setting('fsync'), current_setting('full_page_writes'),
			(select coalesce(reset_val, '') from pg_settings where name = 'synchronous_commit'), pg_is_in_recovery(), clock_timestamp()`).
			Scan(&version, &fsync, &pages, &sync, &standby, &clock)
	})
	if err != nil {
		return nil, err
	}
	findings := []inbox.Finding{{Level: inbox.LevelOK, Subject: subject, Detail: "PostgreSQL " + version}}
	add := func(level, detail, remedy string) {
		findings = append(findings, inbox.Finding{Level: level, Subject: subject, Detail: detail, Remedy: remedy})
	}
	if standby {
		add(inbox.LevelFail, "the server is a standby", "use the address of the primary, or target_session_attrs=read-write with several hosts")
	}
	if fsync != "on" {
		add(inbox.LevelWarn, "fsync is off: after a power cut records are missing and messages are processed again", "set fsync = on")
	}
	if pages != "on" {
		add(inbox.LevelWarn, "full_page_writes is off: a power cut can damage the ledger", "set full_page_writes = on unless the file system writes pages whole")
	}
	if sync == "off" {
		add(inbox.LevelWarn, "synchronous_commit is off on the server; inboxd switches it on for its own transactions", "nothing needs doing for inboxd")
	}
	if skew := time.Since(clock).Abs(); skew > time.Minute {
		add(inbox.LevelWarn, fmt.Sprintf("the clocks of this machine and of the server differ by %v", skew.Round(time.Second)), "synchronise them: due times and retention depend on both")
	}
	if s.pooled {
		add(inbox.LevelOK, "through a connection pooler", "")
	}
	return findings, nil
}

func (s *Store) examineSchema(ctx context.Context) ([]inbox.Finding, error) {
	subject := "store " + s.where
	version, err := s.version(ctx)
	if err != nil {
		return nil, err
	}
	known := len(migrationNames())
	switch {
	case version == 0:
		finding, err := s.examineNoSchema(ctx)
		return []inbox.Finding{finding}, err
	case version < known:
		return []inbox.Finding{{Level: inbox.LevelOK, Subject: subject, Detail: fmt.Sprintf("schema version %d; it is brought to %d at the next start", version, known)}}, nil
	}
	if err := s.identify(ctx, version); err != nil {
		return nil, err
	}
	findings := []inbox.Finding{{Level: inbox.LevelOK, Subject: subject, Detail: fmt.Sprintf("schema version %d", version)}}
	var missing []string
	var oldest *time.Time
	err = s.try(ctx, s.desk, s.opts.CallTime, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `select array(select t from unnest(array['processed', 'lease', 'owner', 'parked', 'audit', 'paused']) as t
				where not (has_table_privilege('inboxd.' || t, 'select') and has_table_privilege('inboxd.' || t, 'insert')
					and has_table_privilege('inboxd.' || t, 'update') and has_table_privilege('inboxd.' || t, 'delete'))),
			(select min(processed_at) from inboxd.processed)`).Scan(&missing, &oldest)
	})
	if err != nil {
		return nil, err
	}
	if len(missing) > 0 {
		findings = append(findings, inbox.Finding{
			Level: inbox.LevelFail, Subject: subject, Detail: fmt.Sprintf("no privileges on %v in schema inboxd", missing),
			Remedy: "grant select, insert, update, delete on all tables in schema inboxd to the user of store.url",
		})
	}
	if oldest != nil && time.Since(*oldest) > 2*s.opts.Retention {
		findings = append(findings, inbox.Finding{
			Level: inbox.LevelWarn, Subject: subject,
			Detail: fmt.Sprintf("the oldest record is of %s, far beyond the retention of %v", oldest.UTC().Format(time.RFC3339), s.opts.Retention),
			Remedy: "right after a long stop; otherwise look for errors of the retention in the log",
		})
	}
	return findings, nil
}

// examineNoSchema tells whether the first start can create what is missing.
func (s *Store) examineNoSchema(ctx context.Context) (inbox.Finding, error) {
	f := inbox.Finding{
		Level: inbox.LevelWarn, Subject: "store " + s.where, Detail: "there is no schema inboxd yet; the first start creates it",
		Remedy: "right at the first start only: if there was an inbox before, this is another database",
	}
	var may, there bool
	err := s.try(ctx, s.desk, s.opts.CallTime, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `select exists (select from pg_catalog.pg_namespace where nspname = 'inboxd'),
			case when exists (select from pg_catalog.pg_namespace where nspname = 'inboxd')
				then has_schema_privilege('inboxd', 'create')
				else has_database_privilege(current_database(), 'create') end`).Scan(&there, &may)
	})
	if may || err != nil {
		return f, err
	}
	f.Level = inbox.LevelFail
	f.Remedy = "as the owner of the database run what `inboxd schema ledger` prints and grant the user of store.url usage of the schema and its tables, or grant that user create"
	f.Detail = "there is no schema inboxd, and this user may not create one"
	if there {
		f.Detail = "the schema inboxd has no tables, and this user may not create them"
	}
	return f, nil
}
