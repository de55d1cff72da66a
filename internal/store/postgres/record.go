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
	return s.call(context.Background(), store.OpRecord, s.inserts, func(ctx context.Context, conn *pgx.Conn) error {
		return s.send(ctx, conn, func(b *statements) {
			b.last(func() {
				for _, g := range groups {
					ids, fps := rowsOf(g)
					b.Queue(recordSQL, g.consumer, ids, fps)
				}
				if s.opts.NoLeases {
					return
				}
				for _, g := range groups {
					b.Queue(releaseSQL, g.consumer, g.ids, s.owner)
				}
				s.ended.Add(int64(len(records)))
			})
		})
	})
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
