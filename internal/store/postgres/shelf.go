package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/inboxd/inboxd/internal/inbox"
	"github.com/inboxd/inboxd/internal/store"
)

const (
	replaceSQL = `update inboxd.parked as p set consumer = $2, message_id = $3, body_hash = $4, fingerprint = $5, reason = $6,
			state = $7, attempts = $8, requests = $9, slow = $10, replays = greatest(p.replays, $11), last_status = $12, error = $13,
			queue = $14, redelivered = $15, first_received = $16, last_attempt = $17, parked_at = $18, due = $19,
			envelope = $20, headers = $21, answer = $22, body = $23, taken_by = null
		where id = $1 returning id`
	// giveWaySQL removes a stored message that has become one with another: its ID
	// is looked for elsewhere since it was stored. It is merged into that one.
	giveWaySQL = `delete from inboxd.parked where id = $1 and exists (select from inboxd.parked as o
		where o.consumer = $2 and o.message_id = $3 and o.message_id <> '' and o.body_hash = $4 and o.id <> $1)`
	// insertParkedSQL keeps what is known of a message that is stored already: it
	// has not become younger, nor its attempts fewer. Whoever has taken it up goes
	// on with it. The conflict's target is written out: without it a repeated call
	// would be taken for a merge.
	insertParkedSQL = `insert into inboxd.parked as p (id, consumer, message_id, body_hash, fingerprint, reason, state,
			attempts, requests, slow, replays, last_status, error, queue, redelivered,
			first_received, last_attempt, parked_at, due, envelope, headers, answer, body)
		values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23)
		on conflict (consumer, message_id, body_hash) where message_id <> '' do update set
			fingerprint = excluded.fingerprint, reason = excluded.reason, state = excluded.state,
			attempts = greatest(p.attempts, excluded.attempts), requests = greatest(p.requests, excluded.requests),
			slow = greatest(p.slow, excluded.slow), last_status = excluded.last_status, error = excluded.error,
			queue = excluded.queue, redelivered = excluded.redelivered,
			first_received = least(p.first_received, excluded.first_received),
			last_attempt = greatest(p.last_attempt, excluded.last_attempt), parked_at = excluded.parked_at, due = excluded.due,
			envelope = excluded.envelope, headers = excluded.headers, answer = excluded.answer
		returning id`

	// aliveSQL is true where a message is being processed at this moment.
	aliveSQL = `(p.taken_by is not null and exists (select from inboxd.owner o where o.id = p.taken_by and o.expires_at > clock_timestamp()))`

	takeSQL = `update inboxd.parked as p set taken_by = $3 from (
			select id from inboxd.parked as p
			where consumer = $1 and state = 'deferred' and due <= clock_timestamp()
				and (not ` + aliveSQL + ` or taken_by = $3 and id <> all($4::text[]))
			order by due, id limit $2 for update skip locked) as d
		where p.id = d.id returning ` + wholeColumns
)

// bodyBytesPerSecond is what a slow network is assumed to carry: a large body
// gets more than the time of a call.
const bodyBytesPerSecond = 4 << 20

// Park stores m durably.
func (s *Store) Park(ctx context.Context, m *inbox.ParkedMessage) error {
	stored := *m
	if stored.ID == "" {
		stored.ID = store.NewID() // once: a repeated call must not store it twice
	}
	args, err := values(&stored)
	if err != nil {
		return fmt.Errorf("park: %w", err)
	}
	settled := s.inHand.settling(m.ID)
	var id string
	limit := s.opts.CallTime + time.Duration(len(m.Body))*time.Second/bodyBytesPerSecond
	err = s.callFor(ctx, limit, store.OpPark, s.desk, func(ctx context.Context, conn *pgx.Conn) error {
		// By its ID first, also where the ID is new: then an earlier try of this
		// call may have stored it. Discarded meanwhile, it is kept all the same.
		return s.inTx(ctx, conn, func(tx pgx.Tx) error {
			if m.ID != "" {
				if _, err := tx.Exec(ctx, giveWaySQL, args[:4]...); err != nil {
					return err
				}
			}
			err := tx.QueryRow(ctx, replaceSQL, args...).Scan(&id)
			if errors.Is(err, pgx.ErrNoRows) {
				err = tx.QueryRow(ctx, insertParkedSQL, args...).Scan(&id)
			}
			return err
		})
	})
	if err != nil {
		return fmt.Errorf("park: %w", err)
	}
	settled()
	m.ID = id
	s.countSoon()
	return nil
}

// TakeDue hands due messages to this process, which owns them as it owns leases.
func (s *Store) TakeDue(ctx context.Context, consumer string, n int) (messages []*inbox.ParkedMessage, err error) {
	if err := s.inHand.lock(ctx); err != nil {
		return nil, fmt.Errorf("take due: %w", err)
	}
	defer s.inHand.unlock()
	had := s.inHand.ids()
	err = s.call(ctx, store.OpTake, s.desk, func(ctx context.Context, conn *pgx.Conn) error {
		messages = nil
		// One round trip: an idle daemon does little else.
		return s.send(ctx, conn, func(b *statements) {
			b.last(func() {
				b.Queue(takeSQL, consumer, n, s.owner, had).Query(func(rows pgx.Rows) (err error) {
					messages, err = collect(rows, nil, true)
					return err
				})
			})
		})
	})
	if err != nil {
		return nil, fmt.Errorf("take due: %w", err)
	}
	ids := make([]string, len(messages))
	for i, m := range messages {
		ids[i] = m.ID
	}
	s.inHand.add(ids)
	slices.SortFunc(messages, func(a, b *inbox.ParkedMessage) int {
		return cmp.Or(a.Due.Compare(b.Due), cmp.Compare(a.ID, b.ID))
	})
	return messages, nil
}

// PutBack returns a message that this process has taken.
func (s *Store) PutBack(ctx context.Context, id string, due time.Time) error {
	settled := s.inHand.settling(id)
	err := s.exec(ctx, store.OpTake, "update inboxd.parked set taken_by = null, due = $2 where id = $1 and taken_by = $3", id, due, s.owner)
	if err != nil && !errors.Is(err, inbox.ErrNotFound) {
		return fmt.Errorf("put back: %w", err)
	}
	settled()
	return nil
}

// Remove deletes a stored message.
func (s *Store) Remove(ctx context.Context, id string) error {
	defer s.countSoon()
	settled := s.inHand.settling(id)
	err := s.exec(ctx, store.OpRemove, "delete from inboxd.parked where id = $1", id)
	if err == nil || errors.Is(err, inbox.ErrNotFound) {
		settled()
	}
	if err != nil {
		return fmt.Errorf("remove: %w", err)
	}
	return nil
}

// Discard deletes a stored message that a person gave up.
func (s *Store) Discard(ctx context.Context, id string) error {
	defer s.countSoon()
	if err := s.exec(ctx, store.OpDesk, "delete from inboxd.parked where id = $1", id); err != nil {
		return fmt.Errorf("discard: %w", err)
	}
	return nil
}

// Replay makes a message due now, unless it is being processed.
func (s *Store) Replay(ctx context.Context, id string) error {
	err := s.exec(ctx, store.OpDesk, `update inboxd.parked as p set
			state    = case when `+aliveSQL+` then state else 'deferred' end,
			due      = case when `+aliveSQL+` then due else clock_timestamp() end,
			attempts = case when `+aliveSQL+` then attempts else 0 end,
			slow     = case when `+aliveSQL+` then slow else 0 end,
			replays  = case when `+aliveSQL+` then replays else replays + 1 end
		where id = $1`, id)
	if err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	return nil
}

// exec runs one statement and answers ErrNotFound where it changed nothing.
func (s *Store) exec(ctx context.Context, op store.Operation, sql string, args ...any) error {
	return s.call(ctx, op, s.desk, func(ctx context.Context, conn *pgx.Conn) error {
		return s.inTx(ctx, conn, func(tx pgx.Tx) error {
			tag, err := tx.Exec(ctx, sql, args...)
			if err == nil && tag.RowsAffected() == 0 {
				return inbox.ErrNotFound
			}
			return err
		})
	})
}

// inTx runs do in a transaction with our settings. On an error the transaction
// is rolled back, and the connection dropped where that fails.
func (s *Store) inTx(ctx context.Context, conn *pgx.Conn, do func(pgx.Tx) error) error {
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite})
	if err != nil {
		return err
	}
	if s.pooled {
		_, err = tx.Exec(ctx, settingsSQL, s.settings(true)...)
	}
	if err == nil {
		err = do(tx)
	}
	if err != nil {
		_ = tx.Rollback(ctx)
		return err
	}
	return tx.Commit(ctx)
}
