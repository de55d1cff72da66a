package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	lib "modernc.org/sqlite/lib"

	"github.com/inboxd/inboxd/internal/inbox"
	"github.com/inboxd/inboxd/internal/store"
)

// maxWrites bounds how many changes share a transaction; each may carry a body.
const maxWrites = 64

// write is one change to the database among others of its transaction.
type write struct {
	do  func(context.Context, *sql.Tx) error
	err error // what do returned
}

// inWrite runs do in a transaction on the writing connection, which it may share
// with others that came meanwhile: the disk is waited for once for all of them.
// What do changed is durable when nil is returned, and undone otherwise. ctx
// bounds the wait for the connection, nothing after it.
func (s *Store) inWrite(ctx context.Context, op store.Operation, do func(context.Context, *sql.Tx) error) (err error) {
	start := time.Now()
	defer func() { s.metrics.Done(op, start, unexpected(err)) }()
	w := &write{do: do}
	if err := s.writes.Do(ctx, w); err != nil {
		return err
	}
	return w.err
}

func (s *Store) flushWrites(writes []*write) error {
	if err := s.usable(); err != nil {
		return err
	}
	ctx := context.Background()
	tx, err := s.write.BeginTx(ctx, nil)
	if err != nil {
		return s.wrote(err)
	}
	for _, w := range writes {
		if err := s.within(ctx, tx, w); err != nil {
			_ = tx.Rollback()
			return s.wrote(err)
		}
	}
	return s.wrote(tx.Commit())
}

// within runs one write so that its failure undoes it alone. It returns an
// error where the whole transaction is lost.
func (s *Store) within(ctx context.Context, tx *sql.Tx, w *write) error {
	if _, err := tx.ExecContext(ctx, "savepoint one"); err != nil {
		return fmt.Errorf("savepoint: %w", err)
	}
	w.err = w.do(ctx, tx)
	if w.err != nil {
		if !errors.Is(w.err, inbox.ErrNotFound) && endsTransaction(w.err) {
			return w.err
		}
		w.err = s.wrote(w.err)
		if _, err := tx.ExecContext(ctx, "rollback to one"); err != nil {
			return fmt.Errorf("rollback: %w", err)
		}
	}
	if _, err := tx.ExecContext(ctx, "release one"); err != nil {
		return fmt.Errorf("release: %w", err)
	}
	return nil
}

// endsTransaction reports whether SQLite may have rolled the transaction back by
// itself (https://www.sqlite.org/lang_transaction.html, section 3).
func endsTransaction(err error) bool {
	switch code(err) & 0xff {
	case lib.SQLITE_FULL, lib.SQLITE_IOERR, lib.SQLITE_NOMEM, lib.SQLITE_BUSY, lib.SQLITE_INTERRUPT,
		lib.SQLITE_CORRUPT, lib.SQLITE_NOTADB, lib.SQLITE_READONLY:
		return true
	default:
		return false
	}
}
