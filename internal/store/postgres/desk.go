package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/inboxd/inboxd/internal/inbox"
	"github.com/inboxd/inboxd/internal/store"
)

// ask runs a question of a person or of the upkeep.
func (s *Store) ask(ctx context.Context, what string, do func(context.Context, pgx.Tx) error) error {
	err := s.call(ctx, store.OpDesk, s.desk, func(ctx context.Context, conn *pgx.Conn) error {
		return s.inTx(ctx, conn, func(tx pgx.Tx) error { return do(ctx, tx) })
	})
	if errors.Is(err, pgx.ErrNoRows) {
		err = inbox.ErrNotFound
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// ListParked returns one page of the stored messages, without their bodies.
func (s *Store) ListParked(ctx context.Context, f inbox.ParkedFilter, after string, limit int) (page []*inbox.ParkedMessage, err error) {
	err = s.ask(ctx, "list", func(ctx context.Context, tx pgx.Tx) error {
		where, args := filter(f, after, limit)
		rows, err := tx.Query(ctx, "select "+summaryColumns+" from inboxd.parked p where id > $1"+where+" order by id limit $2", args...)
		page, err = collect(rows, err, false)
		return err
	})
	return page, err
}

func filter(f inbox.ParkedFilter, first ...any) (where string, args []any) {
	args = first
	add := func(condition string, arg any) {
		args = append(args, arg)
		where += fmt.Sprintf(" and "+condition+" $%d", len(args))
	}
	if f.Consumer != "" {
		add("consumer =", f.Consumer)
	}
	if f.MessageID != "" {
		add("message_id =", string(f.MessageID))
	}
	if f.Reason != inbox.NoReason {
		add("reason =", f.Reason.String())
	}
	if f.State != "" {
		add("state =", string(f.State))
	}
	if !f.Before.IsZero() {
		add("parked_at <", f.Before)
	}
	return where, args
}

// CountParked counts the stored messages.
func (s *Store) CountParked(ctx context.Context) (counts []inbox.ParkedCount, err error) {
	err = s.ask(ctx, "count", func(ctx context.Context, tx pgx.Tx) error {
		counts = nil
		rows, err := tx.Query(ctx, `select consumer, state, reason, count(*), min(parked_at)
			from inboxd.parked group by 1, 2, 3 order by 1, 2, 3`)
		if err != nil {
			return err
		}
		var c inbox.ParkedCount
		var state, reason string
		_, err = pgx.ForEachRow(rows, []any{&c.Consumer, &state, &reason, &c.Count, &c.Oldest}, func() error {
			c.State = inbox.ParkedState(state)
			c.Reason, _ = inbox.ParseParkReason(reason)
			c.Oldest = c.Oldest.UTC()
			counts = append(counts, c)
			return nil
		})
		return err
	})
	return counts, err
}

// GetParked returns one message whole.
func (s *Store) GetParked(ctx context.Context, id string) (m *inbox.ParkedMessage, err error) {
	err = s.ask(ctx, "show", func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, "select "+wholeColumns+" from inboxd.parked p where id = $1", id)
		found, err := collect(rows, err, true)
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
	err := s.ask(ctx, "look up", func(ctx context.Context, tx pgx.Tx) error {
		var fp []byte
		err := tx.QueryRow(ctx, "select fingerprint, processed_at from inboxd.processed where consumer = $1 and message_id = $2",
			key.Consumer, string(key.ID)).Scan(&fp, &r.RecordedAt)
		copy(r.Fingerprint[:], fp)
		r.RecordedAt = r.RecordedAt.UTC()
		return err
	})
	return r, err
}

// Forget deletes the record of key.
func (s *Store) Forget(ctx context.Context, key inbox.Key) error {
	err := s.exec(ctx, store.OpDesk, "delete from inboxd.processed where consumer = $1 and message_id = $2", key.Consumer, string(key.ID))
	if err != nil {
		return fmt.Errorf("forget: %w", err)
	}
	return nil
}

// MarkRecorded records key by hand.
func (s *Store) MarkRecorded(ctx context.Context, key inbox.Key, fp inbox.Fingerprint) (bool, error) {
	if key.ID == "" {
		return false, errNoID
	}
	var bytes []byte
	if !fp.IsZero() {
		bytes = fp[:]
	}
	err := s.exec(ctx, store.OpDesk, recordSQL, key.Consumer, []string{string(key.ID)}, [][]byte{bytes})
	if errors.Is(err, inbox.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("record: %w", err)
	}
	return true, nil
}

// Audit appends one line to the audit table.
func (s *Store) Audit(ctx context.Context, e inbox.AuditEntry) error {
	if e.At.IsZero() {
		e.At = time.Now()
	}
	err := s.exec(ctx, store.OpDesk, `insert into inboxd.audit (at, actor, action, consumer, target, reason) values ($1, $2, $3, $4, $5, $6)`,
		e.At, store.PlainText(e.Actor), store.PlainText(e.Action), store.PlainText(e.Consumer), store.PlainText(e.Target), store.PlainText(e.Reason))
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	return nil
}

// ListAudit returns the newest entries.
func (s *Store) ListAudit(ctx context.Context, limit int) (entries []inbox.AuditEntry, err error) {
	err = s.ask(ctx, "audit", func(ctx context.Context, tx pgx.Tx) error {
		entries = nil
		rows, err := tx.Query(ctx, "select at, actor, action, consumer, target, reason from inboxd.audit order by id desc limit $1", limit)
		if err != nil {
			return err
		}
		var e inbox.AuditEntry
		_, err = pgx.ForEachRow(rows, []any{&e.At, &e.Actor, &e.Action, &e.Consumer, &e.Target, &e.Reason}, func() error {
			e.At = e.At.UTC()
			entries = append(entries, e)
			return nil
		})
		return err
	})
	return entries, err
}

// SetPaused stores or clears the pause of a consumer.
func (s *Store) SetPaused(ctx context.Context, consumer string, paused bool, why string) error {
	sql, args := "delete from inboxd.paused where consumer = $1", []any{consumer}
	if paused {
		sql = `insert into inboxd.paused (consumer, why) values ($1, $2) on conflict (consumer) do update set why = excluded.why`
		args = append(args, store.PlainText(why))
	}
	if err := s.exec(ctx, store.OpDesk, sql, args...); err != nil && !errors.Is(err, inbox.ErrNotFound) {
		return fmt.Errorf("pause: %w", err)
	}
	return nil
}

// Paused returns the paused consumers and why.
func (s *Store) Paused(ctx context.Context) (map[string]string, error) {
	paused := make(map[string]string)
	err := s.ask(ctx, "paused", func(ctx context.Context, tx pgx.Tx) error {
		clear(paused)
		rows, err := tx.Query(ctx, "select consumer, why from inboxd.paused")
		if err != nil {
			return err
		}
		var consumer, why string
		_, err = pgx.ForEachRow(rows, []any{&consumer, &why}, func() error {
			paused[consumer] = why
			return nil
		})
		return err
	})
	return paused, err
}
