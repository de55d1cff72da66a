package sqlite

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"github.com/inboxd/inboxd/internal/store"
)

//go:embed migrations/*.sql
var migrations embed.FS

// applicationID marks our files: "inbx".
const applicationID = 0x696e6278

// migrate brings the file to the newest schema this program knows. A file of a
// newer program is accepted where that program said so (meta.min_version).
func (s *Store) migrate(ctx context.Context) error {
	var app, version, tables int
	for query, to := range map[string]*int{
		"pragma application_id":              &app,
		"pragma user_version":                &version,
		"select count(*) from sqlite_schema": &tables,
	} {
		if err := s.write.QueryRowContext(ctx, query).Scan(to); err != nil {
			return setupError(err)
		}
	}
	if app != applicationID && tables > 0 {
		return fmt.Errorf("%w: the file is a database of another program", store.ErrSetup)
	}
	names, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil {
		return err
	}
	if version > len(names) {
		return s.acceptNewer(ctx, version, len(names))
	}
	for n, name := range names[version:] {
		if err := s.apply(ctx, name, version+n+1); err != nil {
			return fmt.Errorf("migration %s: %w", name, setupError(err))
		}
	}
	return nil
}

func (s *Store) apply(ctx context.Context, name string, version int) error {
	text, err := migrations.ReadFile(name)
	if err != nil {
		return err
	}
	tx, err := s.write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(ctx, string(text)); err != nil {
		return err
	}
	if version == 1 {
		_, err := tx.ExecContext(ctx, "insert into meta values ('store_id', ?1), ('created', ?2)",
			store.NewID(), time.Now().UTC().Format(time.RFC3339))
		if err != nil {
			return err
		}
	}
	_, err = tx.ExecContext(ctx, fmt.Sprintf("pragma application_id = %d; pragma user_version = %d", applicationID, version))
	if err != nil {
		return err
	}
	return tx.Commit()
}

func (s *Store) acceptNewer(ctx context.Context, version, known int) error {
	var least string
	if err := s.write.QueryRowContext(ctx, "select value from meta where key = 'min_version'").Scan(&least); err != nil {
		return setupError(err)
	}
	if n, err := strconv.Atoi(least); err != nil || n > known {
		return fmt.Errorf("%w: the file was written by a newer inboxd (schema %d, this program knows %d): update inboxd", store.ErrSetup, version, known)
	}
	s.log.Warn("the inbox was written by a newer inboxd", "schema", version, "known", known)
	return nil
}

// checkIntegrity reads the file through, for a bounded time: a large inbox must
// not delay the start by minutes.
func (s *Store) checkIntegrity(ctx context.Context, created, unclean bool) error {
	if created {
		return nil
	}
	limit := s.opts.CheckTime
	if unclean {
		limit *= 5
	}
	start := time.Now()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	damage, err := quickCheck(ctx, s.look)
	switch {
	case ctx.Err() != nil:
		s.log.Info("integrity check stopped at its time limit", "store", s.Describe(), "duration", time.Since(start))
		return nil
	case err != nil:
		return setupError(err)
	case damage != "":
		return fmt.Errorf("%w: the file is damaged (%s): restore it from a backup, or move it away to start with an empty inbox, which forgets what was processed",
			store.ErrSetup, damage)
	}
	s.log.Debug("integrity check passed", "store", s.Describe(), "duration", time.Since(start))
	return nil
}

// quickCheck returns what is wrong with the file, "" for nothing.
func quickCheck(ctx context.Context, db *sql.DB) (damage string, err error) {
	err = db.QueryRowContext(ctx, "pragma quick_check(1)").Scan(&damage)
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	if damage == "ok" {
		damage = ""
	}
	return strings.TrimSpace(damage), err
}

// Schema returns everything that Open creates in an empty file, for a person to
// read.
func Schema() string {
	names, _ := fs.Glob(migrations, "migrations/*.sql") // sorted; the pattern is right
	var all []byte
	for _, name := range names {
		text, _ := migrations.ReadFile(name) // embedded
		all = append(all, text...)
	}
	return string(all)
}
