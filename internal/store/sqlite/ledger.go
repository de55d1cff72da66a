package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
	"github.com/inboxd/inboxd/internal/store"
)

// A batch travels as one JSON array: one statement and one parameter, instead of
// a call through the driver for each row.
const (
	// lookUpSQL probes the primary key once for each element; "cross join" keeps
	// SQLite from turning the loops round, whatever its statistics say. Only what
	// is recorded comes back.
	lookUpSQL = `select k.key, p.fingerprint, p.recorded_at
		from json_each(?2) as k cross join processed as p
		where p.consumer = ?1 and p.message_id = k.value`
	// insertSQL takes elements of 16 hexadecimal digits and the message ID.
	insertSQL = `insert into processed (consumer, message_id, fingerprint, recorded_at)
		select ?1, substr(value, 17), nullif(unhex(substr(value, 1, 16)), x'0000000000000000'), ?3
		from json_each(?2) where true
		on conflict do nothing`
)

var errNoID = errors.New("no message ID: such a message has no place in the ledger")

type record struct {
	key inbox.Key
	fp  inbox.Fingerprint
}

var recordPool = sync.Pool{New: func() any { return new(record) }}

// Claim looks key up. There are no leases: the file has one daemon, and that
// forwards a key once at a time.
func (s *Store) Claim(ctx context.Context, key inbox.Key, fp inbox.Fingerprint) (inbox.Claim, error) {
	c := &inbox.Claiming{Claim: inbox.Claim{Key: key, Fingerprint: fp}}
	err := s.claims.Do(ctx, c)
	if c.Answered(err); c.Err != nil {
		return inbox.Claim{}, c.Err
	}
	return c.Claim, nil
}

// ClaimAll implements inbox.Ledger.
func (s *Store) ClaimAll(claims []*inbox.Claiming) {
	err := s.claims.DoAll(context.Background(), claims)
	for _, c := range claims {
		c.Answered(err)
	}
}

// Record makes "processed" durable.
func (s *Store) Record(ctx context.Context, c inbox.Claim) error {
	if c.Key.ID == "" {
		return errNoID
	}
	r := recordPool.Get().(*record)
	defer recordPool.Put(r)
	*r = record{key: c.Key, fp: c.Fingerprint}
	if err := s.records.Do(ctx, r); err != nil {
		return fmt.Errorf("record: %w", err)
	}
	return nil
}

// Release has nothing to do: there are no leases.
func (s *Store) Release(inbox.Claim) {}

func (s *Store) flushClaims(claims []*inbox.Claiming) (err error) {
	start := time.Now()
	defer func() { s.metrics.Done(store.OpClaim, start, err) }()
	s.metrics.Size(store.OpClaim, len(claims))
	if err := s.usable(); err != nil {
		return err
	}
	for _, c := range claims {
		c.Claim, c.Err = inbox.Claim{Key: c.Key, Fingerprint: c.Fingerprint, Status: inbox.ClaimNew}, nil
		if c.Key.ID == "" {
			c.Err = errNoID // nothing is found for it
		}
	}
	slices.SortFunc(claims, func(a, b *inbox.Claiming) int { return cmpKey(a.Key, b.Key) })
	for group := range byConsumer(claims, claimKey) {
		if err := s.lookUpGroup(group, start); err != nil {
			return err
		}
	}
	// An inbox that lost its file would call everything new.
	return s.files.check()
}

func (s *Store) lookUpGroup(claims []*inbox.Claiming, now time.Time) error {
	consumer, ok := s.consumers.get(claims[0].Key.Consumer)
	if !ok {
		return nil // nothing was ever recorded for it
	}
	buf := jsonPool.Get().(*[]byte)
	defer jsonPool.Put(buf)
	b := append((*buf)[:0], '[')
	for i, c := range claims {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendElement(b, nil, string(c.Key.ID))
	}
	*buf = append(b, ']')
	rows, err := s.lookUp.QueryContext(context.Background(), consumer, string(*buf))
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var i int
		var fp sql.RawBytes
		var at int64
		if err := rows.Scan(&i, &fp, &at); err != nil {
			return err
		}
		recorded(&claims[i].Claim, fp, at, now)
	}
	return rows.Err()
}

// recorded tells that c was recorded at that time.
func recorded(c *inbox.Claim, fp []byte, at int64, now time.Time) {
	var f inbox.Fingerprint
	copy(f[:], fp)
	c.Status = inbox.ClaimRecorded
	if !f.Matches(c.Fingerprint) {
		c.Status = inbox.ClaimMismatch
	}
	c.RecordedAt = store.FromMillis(at)
	c.Age = max(0, now.Sub(c.RecordedAt))
}

func (s *Store) flushRecords(records []*record) (err error) {
	start := time.Now()
	defer func() { s.metrics.Done(store.OpRecord, start, err) }()
	s.metrics.Size(store.OpRecord, len(records))
	if err := s.usable(); err != nil {
		return err
	}
	// In the order of the key neighbouring rows share pages.
	slices.SortFunc(records, func(a, b *record) int { return cmpKey(a.key, b.key) })
	for group := range byConsumer(records, recordKey) {
		if _, err := s.number(group[0].key.Consumer); err != nil {
			return err
		}
	}
	ctx := context.Background()
	if records[0].key.Consumer == records[len(records)-1].key.Consumer {
		return s.wrote(s.insertGroup(ctx, s.insert, records, start)) // one statement is its own transaction
	}
	tx, err := s.write.BeginTx(ctx, nil)
	if err != nil {
		return s.wrote(err)
	}
	insert := tx.StmtContext(ctx, s.insert)
	for group := range byConsumer(records, recordKey) {
		if err := s.insertGroup(ctx, insert, group, start); err != nil {
			_ = tx.Rollback()
			return s.wrote(err)
		}
	}
	return s.wrote(tx.Commit())
}

func (s *Store) insertGroup(ctx context.Context, insert *sql.Stmt, records []*record, now time.Time) error {
	consumer, _ := s.consumers.get(records[0].key.Consumer)
	buf := jsonPool.Get().(*[]byte)
	defer jsonPool.Put(buf)
	b := append((*buf)[:0], '[')
	for i, r := range records {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendElement(b, r.fp[:], string(r.key.ID))
	}
	*buf = append(b, ']')
	_, err := insert.ExecContext(ctx, consumer, string(*buf), now.UnixMilli())
	return err
}

func claimKey(c *inbox.Claiming) inbox.Key { return c.Key }
func recordKey(r *record) inbox.Key        { return r.key }

func cmpKey(a, b inbox.Key) int {
	if c := cmp.Compare(a.Consumer, b.Consumer); c != 0 {
		return c
	}
	return cmp.Compare(a.ID, b.ID)
}

// byConsumer yields the runs of one consumer in a sorted batch.
func byConsumer[T any](batch []T, key func(T) inbox.Key) func(yield func([]T) bool) {
	return func(yield func([]T) bool) {
		for len(batch) > 0 {
			n := 1
			for n < len(batch) && key(batch[n]).Consumer == key(batch[0]).Consumer {
				n++
			}
			if !yield(batch[:n]) {
				return
			}
			batch = batch[n:]
		}
	}
}

var jsonPool = sync.Pool{New: func() any { return new([]byte) }}

// appendElement appends prefix in hexadecimal and id as one JSON string. A
// canonical ID is visible ASCII; anything else is kept apart all the same.
func appendElement(b, prefix []byte, id string) []byte {
	b = append(b, '"')
	b = hex.AppendEncode(b, prefix)
	for i := range len(id) {
		switch c := id[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < 0x20:
			const digits = "0123456789abcdef"
			b = append(b, '\\', 'u', '0', '0', digits[c>>4], digits[c&15])
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}
