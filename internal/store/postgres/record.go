package postgres

import (
	"context"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/inboxd/inboxd/internal/inbox"
	"github.com/inboxd/inboxd/internal/store"
)

const recordSQL = `insert into inboxd.processed (consumer, message_id, fingerprint)
		select $1, k, f from unnest($2::text[], $3::bytea[]) as t(k, f) on conflict do nothing`

type record struct {
	key inbox.Key
	fp  inbox.Fingerprint
	err error
}

var recordPool = sync.Pool{New: func() any { return new(record) }}

func recordKey(r *record) inbox.Key { return r.key }

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

func (s *Store) flushRecords(items []*record) error {
	s.metrics.Size(store.OpRecord, len(items))
	sortByKey(items, recordKey)
	err := s.insertAll(items)
	if len(items) > 1 && ofTheData(err) {
		for i, r := range items {
			r.err = s.insertAll(items[i : i+1])
		}
		return nil
	}
	return err
}

func (s *Store) insertAll(records []*record) error {
	groups := groupsOf(records, recordKey)
	leased := s.withLease(groups)
	err := s.call(context.Background(), store.OpRecord, s.inserts, func(ctx context.Context, conn *pgx.Conn) error {
		return s.send(ctx, conn, func(b *statements) {
			b.last(func() {
				for _, g := range groups {
					ids, fps := rowsOf(g)
					b.Queue(recordSQL, g.consumer, ids, fps)
				}
				for _, g := range leased {
					b.Queue(releaseSQL, g.consumer, g.ids, s.owner)
					s.ended.Add(int64(len(g.ids)))
				}
			})
		})
	})
	if err == nil && s.leases() {
		s.recorded(groups, leased)
	}
	return err
}

// withLease returns what of the groups has a lease to be given up.
func (s *Store) withLease(groups []group[*record]) (leased []group[*record]) {
	if !s.leases() {
		return nil
	}
	for _, g := range groups {
		if ids := s.hand.withLease(g.consumer, g.ids); len(ids) > 0 {
			leased = append(leased, group[*record]{consumer: g.consumer, ids: ids})
		}
	}
	return leased
}

// recorded takes the groups out of our hand. A lease that came to one meanwhile,
// with the arrival of another daemon, is given up behind it.
func (s *Store) recorded(groups, leased []group[*record]) {
	given := make(map[inbox.Key]bool)
	for _, g := range leased {
		for _, id := range g.ids {
			given[inbox.Key{Consumer: g.consumer, ID: inbox.MessageID(id)}] = true
		}
	}
	for _, g := range groups {
		for _, id := range g.ids {
			key := inbox.Key{Consumer: g.consumer, ID: inbox.MessageID(id)}
			if s.hand.drop(key) && !given[key] {
				s.claims.Put(claim{release: key})
			}
		}
	}
}

// rowsOf returns the columns of the records, as many as there are: the first of
// two with one key counts.
func rowsOf(g group[*record]) (ids []string, fps [][]byte) {
	ids = make([]string, len(g.items))
	fps = make([][]byte, len(g.items))
	for i, r := range g.items {
		ids[i] = string(r.key.ID)
		if !r.fp.IsZero() {
			fps[i] = r.fp[:]
		}
	}
	return ids, fps
}
