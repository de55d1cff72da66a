package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/inboxd/inboxd/internal/inbox"
	"github.com/inboxd/inboxd/internal/store"
)

// beatSQL renews this process's owner row by the server's clock. Without it all
// that the process holds is free for others.
const beatSQL = `insert into inboxd.owner as o (id, name, home, pid, started, expires_at)
	values ($1, $2, $3, $4, $5, clock_timestamp() + $6::interval)
	on conflict (id) do update set expires_at = excluded.expires_at`

func (s *Store) queueBeat(b *statements) {
	b.Queue(beatSQL, s.owner, ownerName(), s.self.home, s.self.pid, s.self.started, s.opts.LeaseTime)
}

func (s *Store) beat(ctx context.Context) error {
	err := s.try(context.WithoutCancel(ctx), s.upkeep, s.opts.CallTime, func(ctx context.Context, conn *pgx.Conn) error {
		return s.send(ctx, conn, func(b *statements) {
			b.last(func() { s.queueBeat(b) })
		})
	})
	if err == nil {
		s.markBeat()
	}
	return err
}

// buryPredecessors ends the leases of owners that ran on this machine and are no
// more: a daemon that was killed and is started again goes on at once.
func (s *Store) buryPredecessors(ctx context.Context) error {
	if s.self.home == "" {
		return nil
	}
	return s.try(ctx, s.upkeep, s.opts.CallTime, func(ctx context.Context, conn *pgx.Conn) error {
		return s.inTx(ctx, conn, func(tx pgx.Tx) error {
			rows, err := tx.Query(ctx, "select id::text, pid, started from inboxd.owner where home = $1", s.self.home)
			if err != nil {
				return err
			}
			var id string
			var ended []string
			other := process{home: s.self.home}
			if _, err := pgx.ForEachRow(rows, []any{&id, &other.pid, &other.started}, func() error {
				if other.ended() {
					ended = append(ended, id)
				}
				return nil
			}); err != nil || len(ended) == 0 {
				return err
			}
			_, err = tx.Exec(ctx, "delete from inboxd.owner where id = any($1::text[]::uuid[])", ended)
			return err
		})
	})
}

func (s *Store) markBeat() { s.beaten.Store(int64(time.Since(s.opened))) }
func (s *Store) sinceBeat() time.Duration {
	return time.Since(s.opened) - time.Duration(s.beaten.Load())
}

// releases are the keys whose lease is to be given up with the next claims. A
// lease lives as long as its owner, so a release that failed must be repeated.
// Only flushes touch it, one at a time.
type releases struct{ keys map[inbox.Key]struct{} }

func (r *releases) put(k inbox.Key) {
	if r.keys == nil {
		r.keys = make(map[inbox.Key]struct{})
	}
	r.keys[k] = struct{}{}
}

func (r *releases) add(items []*claim) {
	for _, c := range items {
		if c.release && c.key.ID != "" {
			r.put(c.key)
		}
	}
}

func (r *releases) keep(consumer string, ids []string) {
	if len(r.keys) == 0 {
		return
	}
	for _, id := range ids {
		delete(r.keys, inbox.Key{Consumer: consumer, ID: inbox.MessageID(id)})
	}
}

// all returns the keys in order, at most a batch of them.
func (r *releases) all() []inbox.Key {
	if len(r.keys) == 0 {
		return nil
	}
	keys := make([]inbox.Key, 0, min(len(r.keys), maxBatch))
	for k := range r.keys {
		if len(keys) == maxBatch {
			break
		}
		keys = append(keys, k)
	}
	sortByKey(keys, func(k inbox.Key) inbox.Key { return k })
	return keys
}

func (r *releases) done(keys []inbox.Key) {
	for _, k := range keys {
		delete(r.keys, k)
	}
}

// queueReleases makes a transaction of its own: one that gave up some keys and
// then waited for others would deadlock with the claims of another replica.
func (s *Store) queueReleases(b *statements, keys []inbox.Key) {
	if len(keys) == 0 {
		return
	}
	b.transaction(func() {
		for _, g := range groupsOf(keys, func(k inbox.Key) inbox.Key { return k }) {
			b.Queue(releaseSQL, g.consumer, g.ids, s.owner)
		}
	})
	s.ended.Add(int64(len(keys)))
}

// flushReleases gives leases up while nobody claims.
func (s *Store) flushReleases() error {
	keys := s.toRelease.all()
	if len(keys) == 0 {
		return nil
	}
	err := s.call(context.Background(), store.OpRelease, s.lookups, func(ctx context.Context, conn *pgx.Conn) error {
		return s.send(ctx, conn, func(b *statements) { s.queueReleases(b, keys) })
	})
	if err == nil || ofTheData(err) {
		s.toRelease.done(keys)
	}
	return err
}

// releaseLeftovers repeats releases that failed. It goes through the line of the
// claims, which own the list.
func (s *Store) releaseLeftovers() {
	if !s.opts.NoLeases {
		s.claims.Put(&claim{release: true})
	}
}
