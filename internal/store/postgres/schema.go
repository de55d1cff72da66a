package postgres

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/inboxd/inboxd/internal/store"
)

//go:embed migrations/*.sql
var migrations embed.FS

// migrationLock is the advisory lock under which one daemon migrates: "inboxd".
const (
	migrationLock = 0x696e626f7864
	cleanerLock   = migrationLock + 1
)

const versionTable = `create table inboxd.migration (
  version    int primary key,
  name       text not null,
  applied_at timestamptz not null default now()
);`

func migrationNames() []string {
	names, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil {
		panic(err) // the pattern is ours
	}
	return names
}

// Schema returns everything that Open would create in an empty database, for a
// database owner who does not let inboxd do it.
func Schema() string {
	var b strings.Builder
	b.WriteString("begin;\ncreate schema inboxd;\n" + versionTable + "\n")
	for i, name := range migrationNames() {
		text, err := migrations.ReadFile(name)
		if err != nil {
			panic(err) // embedded
		}
		fmt.Fprintf(&b, "\n%sinsert into inboxd.migration (version, name) values (%d, '%s');\n", text, i+1, path.Base(name))
	}
	b.WriteString("commit;\n")
	return b.String()
}

// migrate brings the schema to the newest version this program knows, forward
// only. Of many daemons that start at once one does it, the others wait.
func (s *Store) migrate(ctx context.Context) error {
	names := migrationNames()
	version, err := s.version(ctx)
	if err != nil {
		return err
	}
	if version < len(names) {
		if err := s.migrateLocked(ctx, names); err != nil {
			return err
		}
	}
	if err := s.identify(ctx, version); err != nil {
		return err
	}
	if version > len(names) {
		s.log.Warn("the schema was made by a newer inboxd", "schema", version, "known", len(names))
	}
	return nil
}

// identify reads the identity of a schema that is there. An error that wraps
// store.ErrSetup says that this program is too old for it.
func (s *Store) identify(ctx context.Context, version int) error {
	known := len(migrationNames())
	var least string
	err := s.try(ctx, s.upkeep, s.opts.CallTime, func(ctx context.Context, c *pgx.Conn) error {
		return c.QueryRow(ctx, `select (select value from inboxd.meta where key = 'store_id'),
			(select value from inboxd.meta where key = 'min_version')`).Scan(&s.id, &least)
	})
	if err != nil {
		return err
	}
	if n, err := strconv.Atoi(least); err != nil || n > known {
		return fmt.Errorf("%w: the schema was made by a newer inboxd (version %d, this program knows %d): update inboxd",
			store.ErrSetup, version, known)
	}
	return nil
}

// version is 0 where there is no schema yet.
func (s *Store) version(ctx context.Context) (version int, err error) {
	err = s.try(ctx, s.upkeep, s.opts.CallTime, func(ctx context.Context, c *pgx.Conn) error {
		version, err = versionOn(ctx, c)
		return err
	})
	return version, err
}

type queryer interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func versionOn(ctx context.Context, q queryer) (version int, err error) {
	// From the catalogue itself: to_regclass answers from a cache, which after the
	// wait for the lock still says what was true before it.
	var there bool
	err = q.QueryRow(ctx, `select exists (select from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
		where n.nspname = 'inboxd' and c.relname = 'migration')`).Scan(&there)
	if err != nil || !there {
		return 0, err
	}
	err = q.QueryRow(ctx, "select coalesce(max(version), 0) from inboxd.migration").Scan(&version)
	return version, err
}

func (s *Store) migrateLocked(ctx context.Context, names []string) error {
	const patience = 20 // call times: a migration may take longer than a call
	return s.try(ctx, s.upkeep, patience*s.opts.CallTime, func(ctx context.Context, c *pgx.Conn) (err error) {
		tx, err := c.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite})
		if err != nil {
			return err
		}
		defer func() {
			if err != nil {
				err = errors.Join(err, tx.Rollback(context.WithoutCancel(ctx)))
			}
		}()
		// The lock first, in a statement of its own: what is read after it is read
		// by one daemon at a time.
		if _, err := tx.Exec(ctx, "select set_config('statement_timeout', '0', true), set_config('lock_timeout', '0', true)"); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "select pg_advisory_xact_lock($1)", int64(migrationLock)); err != nil {
			return err
		}
		version, err := versionOn(ctx, tx)
		if err != nil {
			return err
		}
		if version == 0 {
			if err := createSchema(ctx, tx); err != nil {
				return err
			}
		}
		for i := version; i < len(names); i++ {
			if err := applyMigration(ctx, tx, names[i], i+1); err != nil {
				return fmt.Errorf("migration %s: %w", names[i], err)
			}
			s.log.Info("schema migrated", "store", s.where, "migration", path.Base(names[i]))
		}
		return tx.Commit(ctx)
	})
}

func createSchema(ctx context.Context, tx pgx.Tx) error {
	var there bool
	if err := tx.QueryRow(ctx, "select exists (select from pg_catalog.pg_namespace where nspname = 'inboxd')").Scan(&there); err != nil {
		return err
	}
	if !there { // "if not exists" would ask for the privilege all the same
		if _, err := tx.Exec(ctx, "create schema inboxd"); err != nil {
			return err
		}
	}
	_, err := tx.Exec(ctx, versionTable)
	return err
}

func applyMigration(ctx context.Context, tx pgx.Tx, name string, version int) error {
	text, err := migrations.ReadFile(name)
	if err != nil {
		return err
	}
	if _, err := tx.Conn().PgConn().Exec(ctx, string(text)).ReadAll(); err != nil {
		return err
	}
	_, err = tx.Exec(ctx, "insert into inboxd.migration (version, name) values ($1, $2)", version, path.Base(name))
	return err
}
