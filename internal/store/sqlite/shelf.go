package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
	"github.com/inboxd/inboxd/internal/store"
)

const (
	replaceSQL = `update parked set consumer = ?2, message_id = ?3, body_hash = ?4, fingerprint = ?5, reason = ?6,
			state = ?7, attempts = ?8, requests = ?9, slow = ?10, replays = max(replays, ?11), last_status = ?12, error = ?13,
			queue = ?14, redelivered = ?15, first_received = ?16, last_attempt = ?17, parked_at = ?18, due = ?19,
			envelope = ?20, headers = ?21, answer = ?22, body = ?23, taken = 0
		where id = ?1`
	// giveWaySQL removes a stored message that has become one with another: its ID
	// is looked for elsewhere since it was stored. It is merged into that one.
	giveWaySQL = `delete from parked where id = ?1 and ?3 <> '' and exists (select 1 from parked as o
		where o.consumer = ?2 and o.message_id = ?3 and o.body_hash = ?4 and o.id <> ?1)`
	// insertParkedSQL keeps what is known of a message that is stored already: it
	// has not become younger, nor its attempts fewer. Whoever has taken it up goes
	// on with it.
	insertParkedSQL = `insert into parked (id, consumer, message_id, body_hash, fingerprint, reason, state,
			attempts, requests, slow, replays, last_status, error, queue, redelivered,
			first_received, last_attempt, parked_at, due, envelope, headers, answer, body)
		values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23)
		on conflict (consumer, message_id, body_hash) where message_id <> '' do update set
			fingerprint = excluded.fingerprint, reason = excluded.reason, state = excluded.state,
			attempts = max(attempts, excluded.attempts), requests = max(requests, excluded.requests),
			slow = max(slow, excluded.slow), last_status = excluded.last_status, error = excluded.error,
			queue = excluded.queue, redelivered = excluded.redelivered,
			first_received = case when excluded.first_received = 0 then first_received
				when first_received = 0 then excluded.first_received
				else min(first_received, excluded.first_received) end,
			last_attempt = max(last_attempt, excluded.last_attempt), parked_at = excluded.parked_at, due = excluded.due,
			envelope = excluded.envelope, headers = excluded.headers, answer = excluded.answer
		returning id`
)

// Park stores m durably.
func (s *Store) Park(ctx context.Context, m *inbox.ParkedMessage) error {
	id := m.ID
	err := s.inWrite(ctx, store.OpPark, func(ctx context.Context, tx *sql.Tx) error {
		stored := *m
		if stored.ID == "" {
			stored.ID = store.NewID()
		}
		args, err := values(&stored)
		if err != nil {
			return err
		}
		if m.ID != "" {
			if _, err := tx.ExecContext(ctx, giveWaySQL, args[:4]...); err != nil {
				return err
			}
			result, err := tx.ExecContext(ctx, replaceSQL, args...)
			if err != nil {
				return err
			}
			if n, err := result.RowsAffected(); n > 0 || err != nil {
				return err
			}
			// Discarded meanwhile, but its processing ended here: keep it.
		}
		return tx.QueryRowContext(ctx, insertParkedSQL, args...).Scan(&id)
	})
	if err != nil {
		return fmt.Errorf("park: %w", err)
	}
	m.ID = id
	s.countSoon()
	return nil
}

// TakeDue hands due messages over. Only this process can have taken one, so a
// mark is enough; Open clears the marks of the process before.
func (s *Store) TakeDue(ctx context.Context, consumer string, n int) (messages []*inbox.ParkedMessage, err error) {
	// Mostly nothing is due, and looking costs no write.
	var due bool
	err = s.desk.QueryRowContext(ctx, `select exists (select 1 from parked
		where consumer = ?1 and state = 'deferred' and taken = 0 and due <= ?2)`, consumer, time.Now().UnixMilli()).Scan(&due)
	if err != nil {
		return nil, fmt.Errorf("take due: %w", err)
	}
	if !due {
		return nil, s.files.check()
	}
	err = s.inWrite(ctx, store.OpTake, func(ctx context.Context, tx *sql.Tx) error {
		rows, err := tx.QueryContext(ctx, `update parked set taken = 1 where id in (
				select id from parked where consumer = ?1 and state = 'deferred' and taken = 0 and due <= ?2
				order by due, id limit ?3)
			returning `+wholeColumns, consumer, time.Now().UnixMilli(), n)
		if err != nil {
			return err
		}
		messages, err = collect(rows, true)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("take due: %w", err)
	}
	slices.SortFunc(messages, func(a, b *inbox.ParkedMessage) int {
		return cmp.Or(a.Due.Compare(b.Due), cmp.Compare(a.ID, b.ID))
	})
	return messages, nil
}

// PutBack returns a taken message.
func (s *Store) PutBack(ctx context.Context, id string, due time.Time) error {
	err := s.inWrite(ctx, store.OpTake, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "update parked set taken = 0, due = ?2 where id = ?1 and taken = 1", id, store.Millis(due))
		return err
	})
	if err != nil {
		return fmt.Errorf("put back: %w", err)
	}
	return nil
}

// Remove deletes a stored message.
func (s *Store) Remove(ctx context.Context, id string) error {
	if err := s.remove(ctx, store.OpRemove, id); err != nil {
		return fmt.Errorf("remove: %w", err)
	}
	return nil
}

// Discard deletes a stored message that a person gave up.
func (s *Store) Discard(ctx context.Context, id string) error {
	if err := s.remove(ctx, store.OpDesk, id); err != nil {
		return fmt.Errorf("discard: %w", err)
	}
	return nil
}

func (s *Store) remove(ctx context.Context, op store.Operation, id string) error {
	err := s.inWrite(ctx, op, func(ctx context.Context, tx *sql.Tx) error {
		return mustChange(tx.ExecContext(ctx, "delete from parked where id = ?1", id))
	})
	s.countSoon()
	return err
}

// Replay makes a message due now, unless it is being processed.
func (s *Store) Replay(ctx context.Context, id string) error {
	err := s.inWrite(ctx, store.OpDesk, func(ctx context.Context, tx *sql.Tx) error {
		var taken bool
		err := tx.QueryRowContext(ctx, "select taken from parked where id = ?1", id).Scan(&taken)
		if errors.Is(err, sql.ErrNoRows) {
			return inbox.ErrNotFound
		}
		if err != nil || taken {
			return err
		}
		_, err = tx.ExecContext(ctx, `update parked set state = 'deferred', due = ?2, attempts = 0, slow = 0,
			replays = replays + 1 where id = ?1`, id, time.Now().UnixMilli())
		return err
	})
	if err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	return nil
}

func mustChange(result sql.Result, err error) error {
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); n > 0 || err != nil {
		return err
	}
	return inbox.ErrNotFound
}
