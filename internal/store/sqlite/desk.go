package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
	"github.com/inboxd/inboxd/internal/store"
)

// read runs a question of a person or of the upkeep on a connection of its own.
func (s *Store) read(op string, do func() error) (err error) {
	start := time.Now()
	defer func() { s.metrics.Done(store.OpDesk, start, unexpected(err)) }()
	if err := s.usable(); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	err = do()
	if errors.Is(err, sql.ErrNoRows) {
		err = inbox.ErrNotFound
	}
	if err == nil {
		err = s.files.check()
	}
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return nil
}

// ListParked returns one page of the stored messages, without their bodies.
func (s *Store) ListParked(ctx context.Context, f inbox.ParkedFilter, after string, limit int) (page []*inbox.ParkedMessage, err error) {
	err = s.read("list", func() error {
		where, args := filter(f)
		rows, err := s.desk.QueryContext(ctx, "select "+summaryColumns+" from parked where id > ?"+where+" order by id limit ?", //nolint:gosec // our own text; values are parameters
			append(append([]any{after}, args...), limit)...)
		if err != nil {
			return err
		}
		page, err = collect(rows, false)
		return err
	})
	return page, err
}

func filter(f inbox.ParkedFilter) (where string, args []any) {
	add := func(condition string, arg any) {
		where += " and " + condition
		args = append(args, arg)
	}
	if f.Consumer != "" {
		add("consumer = ?", f.Consumer)
	}
	if f.MessageID != "" {
		add("message_id = ?", string(f.MessageID))
	}
	if f.Reason != inbox.NoReason {
		add("reason = ?", f.Reason.String())
	}
	if f.State != "" {
		add("state = ?", string(f.State))
	}
	if !f.Before.IsZero() {
		add("parked_at < ?", f.Before.UnixMilli())
	}
	return where, args
}

// CountParked counts the stored messages.
func (s *Store) CountParked(ctx context.Context) (counts []inbox.ParkedCount, err error) {
	err = s.read("count", func() error {
		rows, err := s.desk.QueryContext(ctx, `select consumer, state, reason, count(*), min(parked_at)
			from parked group by consumer, state, reason order by consumer, state, reason`)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var c inbox.ParkedCount
			var reason string
			var oldest int64
			if err := rows.Scan(&c.Consumer, &c.State, &reason, &c.Count, &oldest); err != nil {
				return err
			}
			c.Reason, _ = inbox.ParseParkReason(reason)
			c.Oldest = store.FromMillis(oldest)
			counts = append(counts, c)
		}
		return rows.Err()
	})
	return counts, err
}

// GetParked returns one message whole.
func (s *Store) GetParked(ctx context.Context, id string) (m *inbox.ParkedMessage, err error) {
	err = s.read("show", func() error {
		rows, err := s.desk.QueryContext(ctx, "select "+wholeColumns+" from parked where id = ?1", id)
		if err != nil {
			return err
		}
		found, err := collect(rows, true)
		if err == nil && len(found) == 0 {
			return inbox.ErrNotFound
		}
		if err == nil {
			m = found[0]
		}
		return err
	})
	return m, err
}

// Lookup returns the record of key.
func (s *Store) Lookup(ctx context.Context, key inbox.Key) (inbox.Recorded, error) {
	r := inbox.Recorded{Key: key}
	err := s.read("look up", func() error {
		var fp []byte
		var at int64
		err := s.desk.QueryRowContext(ctx, `select fingerprint, recorded_at from processed
			where consumer = (select id from consumer where name = ?1) and message_id = ?2`,
			key.Consumer, string(key.ID)).Scan(&fp, &at)
		copy(r.Fingerprint[:], fp)
		r.RecordedAt = store.FromMillis(at)
		return err
	})
	return r, err
}

// Forget deletes the record of key.
func (s *Store) Forget(ctx context.Context, key inbox.Key) error {
	err := s.inWrite(ctx, store.OpDesk, func(ctx context.Context, tx *sql.Tx) error {
		return mustChange(tx.ExecContext(ctx, `delete from processed
			where consumer = (select id from consumer where name = ?1) and message_id = ?2`, key.Consumer, string(key.ID)))
	})
	if err != nil {
		return fmt.Errorf("forget: %w", err)
	}
	return nil
}

// MarkRecorded records key by hand.
func (s *Store) MarkRecorded(ctx context.Context, key inbox.Key, fp inbox.Fingerprint) (fresh bool, err error) {
	if key.ID == "" {
		return false, errNoID
	}
	consumer, err := s.number(key.Consumer)
	if err != nil {
		return false, fmt.Errorf("record: %w", err)
	}
	err = s.inWrite(ctx, store.OpDesk, func(ctx context.Context, tx *sql.Tx) error {
		element := append(appendElement([]byte{'['}, fp[:], string(key.ID)), ']')
		err := mustChange(tx.ExecContext(ctx, insertSQL, consumer, string(element), time.Now().UnixMilli()))
		if errors.Is(err, inbox.ErrNotFound) {
			return nil
		}
		fresh = err == nil
		return err
	})
	if err != nil {
		return false, fmt.Errorf("record: %w", err)
	}
	return fresh, nil
}

// Audit appends one line to the audit table.
func (s *Store) Audit(ctx context.Context, e inbox.AuditEntry) error {
	if e.At.IsZero() {
		e.At = time.Now()
	}
	err := s.inWrite(ctx, store.OpDesk, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `insert into audit (at, actor, action, consumer, target, reason)
			values (?1, ?2, ?3, ?4, ?5, ?6)`, e.At.UnixMilli(), store.PlainText(e.Actor), store.PlainText(e.Action),
			store.PlainText(e.Consumer), store.PlainText(e.Target), store.PlainText(e.Reason))
		return err
	})
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	return nil
}

// ListAudit returns the newest entries.
func (s *Store) ListAudit(ctx context.Context, limit int) (entries []inbox.AuditEntry, err error) {
	err = s.read("audit", func() error {
		rows, err := s.desk.QueryContext(ctx,
			"select at, actor, action, consumer, target, reason from audit order by id desc limit ?1", limit)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var e inbox.AuditEntry
			var at int64
			if err := rows.Scan(&at, &e.Actor, &e.Action, &e.Consumer, &e.Target, &e.Reason); err != nil {
				return err
			}
			e.At = store.FromMillis(at)
			entries = append(entries, e)
		}
		return rows.Err()
	})
	return entries, err
}

// SetPaused stores or clears the pause of a consumer.
func (s *Store) SetPaused(ctx context.Context, consumer string, paused bool, why string) error {
	err := s.inWrite(ctx, store.OpDesk, func(ctx context.Context, tx *sql.Tx) error {
		if !paused {
			_, err := tx.ExecContext(ctx, "delete from paused where consumer = ?1", consumer)
			return err
		}
		_, err := tx.ExecContext(ctx, `insert into paused values (?1, ?2, ?3)
			on conflict (consumer) do update set why = excluded.why`, consumer, store.PlainText(why), time.Now().UnixMilli())
		return err
	})
	if err != nil {
		return fmt.Errorf("pause: %w", err)
	}
	return nil
}

// Paused returns the paused consumers and why.
func (s *Store) Paused(ctx context.Context) (map[string]string, error) {
	paused := make(map[string]string)
	err := s.read("paused", func() error {
		rows, err := s.desk.QueryContext(ctx, "select consumer, why from paused")
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var consumer, why string
			if err := rows.Scan(&consumer, &why); err != nil {
				return err
			}
			paused[consumer] = why
		}
		return rows.Err()
	})
	return paused, err
}
