package shared

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/inboxd/inboxd/internal/inbox"
)

// look is one key to be looked up and, after the flush, its answer.
type look struct {
	key   inbox.Key
	found bool
	row   record
}

type record struct {
	inbox.Recorded
	age time.Duration
}

// lookUp joins the next statement. The statement begins after the call, so that
// what was committed before the call is seen.
func (l *Ledger) lookUp(ctx context.Context, key inbox.Key, op operation) (record, bool, error) {
	k := &look{key: key}
	err := l.lookUpAll(ctx, []*look{k}, op)
	return k.row, k.found, err
}

// lookUpAll is lookUp for several keys, which go together.
func (l *Ledger) lookUpAll(ctx context.Context, looks []*look, op operation) error {
	if err := l.refused.Load(); err != nil {
		return err
	}
	start := time.Now()
	err := l.looks.DoAll(ctx, looks)
	l.metrics.done(op, start, err)
	if err != nil {
		return fmt.Errorf("looking up in the shared inbox: %w", err)
	}
	return nil
}

func (l *Ledger) flush(looks []*look) error {
	defer func() { l.metrics.batch.Observe(float64(len(looks))) }()
	ctx, cancel := context.WithTimeout(context.Background(), l.opt.Timeout)
	defer cancel()
	return l.withConn(ctx, func(conn *pgxpool.Conn) error {
		return l.table.lookUp(ctx, conn.Conn(), looks)
	})
}

// withConn lends a connection. One that the error says is spoilt is closed, and
// where the server is no primary any more, so are all the others.
func (l *Ledger) withConn(ctx context.Context, do func(*pgxpool.Conn) error) error {
	conn, err := l.pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("connecting: %w", err)
	}
	defer conn.Release()
	err = do(conn)
	if spoilt(err) {
		_ = conn.Conn().Close(context.WithoutCancel(ctx))
	}
	if demoted(err) {
		l.pool.Reset()
	}
	return err
}

// table is a relation that was found fit, and how to read it.
type table struct {
	name           pgx.Identifier
	uuid           bool // message_id is of type uuid
	hasFingerprint bool
	hasCreatedAt   bool
	plain          bool // an ordinary table: rows can be deleted
}

// probe is the look-up. The sub-select with its limit cannot be turned into
// another join, and prepare forbids a scan: every key costs one descent of the
// index, whatever the statistics say.
func (t table) probe() string {
	fingerprint, createdAt, age := "null::bytea", "null::timestamptz", "0::bigint"
	if t.hasFingerprint {
		fingerprint = "t.fingerprint"
	}
	if t.hasCreatedAt {
		createdAt = "t.created_at"
		age = "(extract(epoch from clock_timestamp() - r.created_at) * 1000000)::bigint"
	}
	idType := "text"
	if t.uuid {
		idType = "uuid"
	}
	return `select k.n, r.fingerprint, r.created_at, ` + age + `
from unnest($1::text[], $2::` + idType + `[]) with ordinality as k (consumer, message_id, n)
cross join lateral (
  select ` + fingerprint + ` as fingerprint, ` + createdAt + ` as created_at
  from ` + t.name.Sanitize() + ` as t
  where t.consumer = k.consumer and t.message_id = k.message_id
  limit 1) as r`
}

// prepare goes before the probe, in the transaction that the two statements of
// one round trip are: its settings end with it, so a pooler may sit between.
const prepare = `select pg_is_in_recovery(), set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true)`

// lookUp answers looks with one round trip.
func (t table) lookUp(ctx context.Context, conn *pgx.Conn, looks []*look) error {
	asked := make([]*look, 0, len(looks))
	for _, k := range looks {
		if !t.uuid || isUUID(string(k.key.ID)) { // no other ID can be in the table
			asked = append(asked, k)
		}
	}
	// Neighbours in the index are read one after the other.
	slices.SortFunc(asked, func(a, b *look) int {
		return cmp.Or(cmp.Compare(a.key.Consumer, b.key.Consumer), cmp.Compare(a.key.ID, b.key.ID))
	})
	consumers := make([]string, len(asked))
	ids := make([]string, len(asked))
	for i, k := range asked {
		consumers[i], ids[i] = k.key.Consumer, string(k.key.ID)
	}
	var b pgx.Batch
	b.Queue(prepare)
	b.Queue(t.probe(), consumers, ids)
	res := conn.SendBatch(ctx, &b)
	err := readAnswers(res, asked)
	if closeErr := res.Close(); err == nil {
		err = closeErr
	}
	return err
}

func readAnswers(res pgx.BatchResults, asked []*look) error {
	var standby bool
	if err := res.QueryRow().Scan(&standby, nil, nil); err != nil {
		return err
	}
	if standby {
		return errStandby
	}
	rows, err := res.Query()
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var (
			n           int
			fingerprint []byte
			createdAt   *time.Time
			age         int64
		)
		if err := rows.Scan(&n, &fingerprint, &createdAt, &age); err != nil {
			return err
		}
		k := asked[n-1]
		k.found = true
		k.row.Key = k.key
		if createdAt != nil {
			k.row.RecordedAt = *createdAt
			k.row.age = max(0, time.Duration(age)*time.Microsecond)
		}
		// A service may keep the whole digest; ours is its start.
		if len(fingerprint) >= len(k.row.Fingerprint) {
			copy(k.row.Fingerprint[:], fingerprint)
		}
	}
	return rows.Err()
}

// isUUID reports whether s is a UUID in its usual form.
func isUUID(s string) bool {
	if len(s) != 36 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if i == 8 || i == 13 || i == 18 || i == 23 {
			if c != '-' {
				return false
			}
		} else if !('0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F') {
			return false
		}
	}
	return true
}
