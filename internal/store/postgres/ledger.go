package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/inboxd/inboxd/internal/inbox"
	"github.com/inboxd/inboxd/internal/store"
)

const (
	// leaseSQL takes what is free. It takes no lock on a row that is there, so
	// that it never stands in the way of its holder.
	leaseSQL = `insert into inboxd.lease (consumer, message_id, owner)
		select $1, k, $3 from unnest($2::text[]) as k on conflict do nothing`

	// lookUpSQL answers only for keys that are recorded or held by another. The
	// lateral queries with their limit are probes of the primary keys whatever the
	// planner believes of the tables. It comes after leaseSQL: a holder that has
	// just recorded and given up its lease is seen as recorded.
	lookUpSQL = `select (k.n - 1)::int, p.fingerprint, p.processed_at,
			extract(epoch from clock_timestamp() - p.processed_at)::float8
		from unnest($2::text[]) with ordinality as k(id, n)
		left join lateral (select fingerprint, processed_at from inboxd.processed
			where consumer = $1 and message_id = k.id limit 1) as p on true
		left join lateral (select owner from inboxd.lease
			where consumer = $1 and message_id = k.id limit 1) as l on true
		where p.processed_at is not null or l.owner is distinct from $3`

	lookUpOnlySQL = `select (k.n - 1)::int, p.fingerprint, p.processed_at,
			extract(epoch from clock_timestamp() - p.processed_at)::float8
		from unnest($2::text[]) with ordinality as k(id, n)
		join lateral (select fingerprint, processed_at from inboxd.processed
			where consumer = $1 and message_id = k.id limit 1) as p on true`

	// inheritSQL takes over the leases of owners that are no more.
	inheritSQL = `update inboxd.lease as l set owner = $3 from (
			select consumer, message_id from inboxd.lease
			where consumer = $1 and message_id = any($2::text[]) and owner <> $3
			and not exists (select from inboxd.owner o where o.id = owner and o.expires_at > clock_timestamp())
			order by message_id for update skip locked) as d
		where l.consumer = d.consumer and l.message_id = d.message_id`

	recordSQL = `insert into inboxd.processed (consumer, message_id, fingerprint)
		select $1, k, f from unnest($2::text[], $3::bytea[]) as t(k, f) on conflict do nothing`

	releaseSQL = `delete from inboxd.lease where consumer = $1 and message_id = any($2::text[]) and owner = $3`
)

var errNoID = errors.New("no message ID: such a message has no place in the ledger")

type claim struct {
	key     inbox.Key
	fp      inbox.Fingerprint
	release bool // the claim is given up, nobody waits
	answer  inbox.Claim
	err     error // of this key alone
}

type record struct {
	key inbox.Key
	fp  inbox.Fingerprint
	err error
}

var (
	claimPool  = sync.Pool{New: func() any { return new(claim) }}
	recordPool = sync.Pool{New: func() any { return new(record) }}
)

// Claim leases key, where there are leases, and looks it up.
func (s *Store) Claim(ctx context.Context, key inbox.Key, fp inbox.Fingerprint) (inbox.Claim, error) {
	if key.ID == "" {
		return inbox.Claim{}, errNoID
	}
	c := claimPool.Get().(*claim)
	defer claimPool.Put(c)
	*c = claim{key: key, fp: fp}
	err := s.claims.Do(ctx, c)
	if err == nil {
		err = c.err
	}
	if err != nil {
		return inbox.Claim{}, fmt.Errorf("claim: %w", err)
	}
	return c.answer, nil
}

// Record makes "processed" durable and gives the lease up in one transaction.
func (s *Store) Record(ctx context.Context, c inbox.Claim) error {
	if c.Key.ID == "" {
		return errNoID
	}
	r := recordPool.Get().(*record)
	defer recordPool.Put(r)
	*r = record{key: c.Key, fp: c.Fingerprint}
	err := s.records.Do(ctx, r)
	if err == nil {
		err = r.err
	}
	if err != nil {
		return fmt.Errorf("record: %w", err)
	}
	return nil
}

// Release gives the claim up. It goes with the next claims, in their order.
func (s *Store) Release(c inbox.Claim) {
	if !s.opts.NoLeases {
		s.claims.Put(&claim{key: c.Key, release: true})
	}
}

func (s *Store) flushClaims(items []*claim) error {
	s.toRelease.add(items)
	asked := slices.DeleteFunc(slices.Clone(items), func(c *claim) bool { return c.release })
	if len(asked) == 0 {
		return s.flushReleases()
	}
	s.metrics.Size(store.OpClaim, len(asked))
	sortByKey(asked, claimKey)
	for group := range byConsumer(asked, claimKey) {
		err := s.claimGroup(group)
		if len(group) > 1 && ofTheData(err) {
			// One of them is poison: it must not block its neighbours.
			for i := range group {
				group[i].err = s.claimGroup(group[i : i+1])
			}
			continue
		}
		for _, c := range group {
			c.err = err
		}
	}
	return nil
}

// claimGroup answers claims of one consumer, sorted by key: batches of two
// replicas in one order cannot deadlock.
func (s *Store) claimGroup(claims []*claim) error {
	consumer := claims[0].key.Consumer
	ids := distinctIDs(claims, claimKey)
	s.toRelease.keep(consumer, ids) // claimed again: not to be released any more
	var held []string
	err := s.call(context.Background(), store.OpClaim, s.lookups, func(ctx context.Context, conn *pgx.Conn) error {
		var err error
		held, err = s.lookUp(ctx, conn, consumer, ids, claims, false)
		return err
	})
	if err == nil && len(held) > 0 {
		err = s.call(context.Background(), store.OpClaim, s.lookups, func(ctx context.Context, conn *pgx.Conn) error {
			_, err := s.lookUp(ctx, conn, consumer, ids, claims, true)
			return err
		})
	}
	if s.opts.NoLeases {
		return err
	}
	for _, c := range claims {
		// An error may have left a lease behind, unless the server refused the key
		// itself. So has what is recorded.
		if err != nil && !ofTheData(err) || c.answer.Status == inbox.ClaimRecorded || c.answer.Status == inbox.ClaimMismatch {
			s.toRelease.put(c.key)
		}
	}
	return err
}

// lookUp sends in one round trip what is to be released, the leases, the look-up.
// It fills in the answers and returns the IDs that others hold. With inherit it
// first takes over what dead owners hold.
func (s *Store) lookUp(ctx context.Context, conn *pgx.Conn, consumer string, ids []string, claims []*claim, inherit bool) (held []string, err error) {
	for _, c := range claims {
		c.answer = inbox.Claim{Key: c.key, Fingerprint: c.fp, Status: inbox.ClaimNew}
	}
	dropped := s.toRelease.all()
	beat := !s.opts.NoLeases && s.sinceBeat() > s.opts.LeaseTime/2
	answers := func(rows pgx.Rows) error { return readAnswers(rows, ids, claims, &held) }
	err = s.send(ctx, conn, func(b *statements) {
		if s.opts.NoLeases {
			b.last(func() { b.Queue(lookUpOnlySQL, consumer, ids).Query(answers) })
			return
		}
		s.queueReleases(b, dropped)
		b.last(func() {
			if beat {
				s.queueBeat(b)
			}
			if inherit {
				b.Queue(inheritSQL, consumer, ids, s.owner)
			}
			b.Queue(leaseSQL, consumer, ids, s.owner)
			b.Queue(lookUpSQL, consumer, ids, s.owner).Query(answers)
		})
	})
	if err != nil {
		return nil, err
	}
	if beat {
		s.markBeat()
	}
	s.toRelease.done(dropped)
	return held, nil
}

// readAnswers gives each row to all claims of its key; both are sorted by ID.
func readAnswers(rows pgx.Rows, ids []string, claims []*claim, held *[]string) error {
	var n int
	var fp []byte
	var at *time.Time
	var age *float64
	_, err := pgx.ForEachRow(rows, []any{&n, &fp, &at, &age}, func() error {
		first, _ := slices.BinarySearchFunc(claims, ids[n], func(c *claim, id string) int {
			return cmp.Compare(string(c.key.ID), id)
		})
		for _, c := range claims[first:] {
			if string(c.key.ID) != ids[n] {
				break
			}
			c.answer.Status = inbox.ClaimHeld
			if at != nil {
				c.recorded(fp, *at, *age)
			}
		}
		if at == nil {
			*held = append(*held, ids[n])
		}
		return nil
	})
	return err
}

func (c *claim) recorded(fp []byte, at time.Time, age float64) {
	var f inbox.Fingerprint
	copy(f[:], fp)
	c.answer.Status = inbox.ClaimRecorded
	if !f.Matches(c.fp) {
		c.answer.Status = inbox.ClaimMismatch
	}
	c.answer.RecordedAt = at.UTC()
	c.answer.Age = max(0, time.Duration(age*float64(time.Second)))
}

func (s *Store) flushRecords(items []*record) error {
	s.metrics.Size(store.OpRecord, len(items))
	sortByKey(items, recordKey)
	for group := range byConsumer(items, recordKey) {
		err := s.recordGroup(group)
		if len(group) > 1 && ofTheData(err) {
			for i := range group {
				group[i].err = s.recordGroup(group[i : i+1])
			}
			continue
		}
		for _, r := range group {
			r.err = err
		}
	}
	return nil
}

func (s *Store) recordGroup(records []*record) error {
	ids := make([]string, len(records))
	fps := make([][]byte, len(records))
	for i, r := range records {
		ids[i] = string(r.key.ID)
		if !r.fp.IsZero() {
			fps[i] = r.fp[:]
		}
	}
	consumer := records[0].key.Consumer
	return s.call(context.Background(), store.OpRecord, s.inserts, func(ctx context.Context, conn *pgx.Conn) error {
		return s.send(ctx, conn, func(b *statements) {
			b.last(func() {
				b.Queue(recordSQL, consumer, ids, fps)
				if !s.opts.NoLeases {
					b.Queue(releaseSQL, consumer, ids, s.owner)
					s.ended.Add(int64(len(ids)))
				}
			})
		})
	})
}

func claimKey(c *claim) inbox.Key   { return c.key }
func recordKey(r *record) inbox.Key { return r.key }

func sortByKey[T any](items []T, key func(T) inbox.Key) {
	slices.SortFunc(items, func(a, b T) int {
		ka, kb := key(a), key(b)
		return cmp.Or(cmp.Compare(ka.Consumer, kb.Consumer), cmp.Compare(ka.ID, kb.ID))
	})
}

// byConsumer yields the runs of one consumer in a sorted batch.
func byConsumer[T any](items []T, key func(T) inbox.Key) func(yield func([]T) bool) {
	return func(yield func([]T) bool) {
		for len(items) > 0 {
			n := 1
			for n < len(items) && key(items[n]).Consumer == key(items[0]).Consumer {
				n++
			}
			if !yield(items[:n]) {
				return
			}
			items = items[n:]
		}
	}
}

func distinctIDs[T any](items []T, key func(T) inbox.Key) []string {
	ids := make([]string, len(items))
	for i, it := range items {
		ids[i] = string(key(it).ID)
	}
	return slices.Compact(ids)
}
