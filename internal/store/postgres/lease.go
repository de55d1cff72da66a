package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/inboxd/inboxd/internal/inbox"
	"github.com/inboxd/inboxd/internal/store"
)

// beatSQL renews this process's owner row by the server's clock. Without it all
// that the process holds is free for others. One that says that we are alone and
// has run out stays so: others may have begun since, and share must come first.
const beatSQL = `insert into inboxd.owner as o (id, name, home, pid, started, expires_at)
	values ($1, $2, $3, $4, $5, clock_timestamp() + $6::interval)
	on conflict (id) do update set expires_at = excluded.expires_at
	where not o.alone or o.expires_at > clock_timestamp()`

func (s *Store) queueBeat(b *statements) {
	b.Queue(beatSQL, s.owner, ownerName(), s.self.home, s.self.pid, s.self.started, s.opts.LeaseTime)
}

// beat renews our row and returns how we stand.
func (s *Store) beat(ctx context.Context) (p standing, err error) {
	err = s.try(context.WithoutCancel(ctx), s.upkeep, s.opts.CallTime, func(ctx context.Context, conn *pgx.Conn) error {
		return s.send(ctx, conn, func(b *statements) {
			b.last(func() {
				s.queueBeat(b)
				p.queue(b, s.owner)
			})
		})
	})
	if err == nil {
		s.markBeat()
	}
	return p, err
}

// beatAndStand renews our row and has what has changed around us looked after, in
// the line of the claims.
func (s *Store) beatAndStand(ctx context.Context) error {
	p, err := s.beat(ctx)
	if err == nil && s.leases() && !s.settled(p) {
		s.claims.Put(claim{place: &p})
	}
	return err
}

// buryPredecessors ends the leases of owners that are no more: those that ran on
// this machine, so that a daemon that was killed and is started again goes on at
// once, and those that have run out. None of them gave its place up as it should
// have, which makes this a start after an unclean stop. So does an owner under
// our host's name from another namespace of processes: a container that was
// started again. That one is left to run out, since it may be alive after all.
func (s *Store) buryPredecessors(ctx context.Context) error {
	return s.try(ctx, s.upkeep, s.opts.CallTime, func(ctx context.Context, conn *pgx.Conn) error {
		return s.inTx(ctx, conn, func(tx pgx.Tx) error {
			rows, err := tx.Query(ctx, `select id::text, name, home, pid, started, expires_at < clock_timestamp()
				from inboxd.owner`)
			if err != nil {
				return err
			}
			var id, name string
			var expired bool
			var ended []string
			var other process
			if _, err := pgx.ForEachRow(rows, []any{&id, &name, &other.home, &other.pid, &other.started, &expired}, func() error {
				here := s.self.home != "" && other.home == s.self.home
				switch {
				case expired || here && other.ended():
					ended = append(ended, id)
				case !here && hostOf(name) == hostOf(ownerName()):
					s.unclean = true
				}
				return nil
			}); err != nil || len(ended) == 0 {
				return err
			}
			s.unclean = true
			_, err = tx.Exec(ctx, "delete from inboxd.owner where id = any($1::text[]::uuid[])", ended)
			return err
		})
	})
}

// UncleanStop implements store.Store. Where several daemons share the inbox, it
// tells of the others too: whatever ended one may be here next.
func (s *Store) UncleanStop() bool { return s.unclean }

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

func (r *releases) add(items []claim) {
	for _, c := range items {
		if c.release.ID != "" {
			r.put(c.release)
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
	if s.leases() {
		s.claims.Put(claim{})
	}
}
