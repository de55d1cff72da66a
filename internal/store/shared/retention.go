package shared

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Pace of the retention: bounded batches, and as long a pause as a batch took,
// so that it never has more than half of one connection.
const (
	cleanBatch = 2000
	cleanIdle  = time.Minute // nothing left to delete
	cleanPause = 50 * time.Millisecond
)

// clean deletes one batch of old rows and returns how long to pause. One
// replica at a time does it; time is the database's.
func (l *Ledger) clean(ctx context.Context) time.Duration {
	start := time.Now()
	n, err := l.cleanBatch(ctx)
	l.metrics.done(opClean, start, err)
	l.metrics.deleted.Add(float64(n))
	switch {
	case err != nil:
		if ctx.Err() == nil {
			l.log.Warn("deleting old rows of the shared inbox failed", "consumer", l.opt.Consumer, "err", err)
		}
		return cleanIdle
	case n < cleanBatch:
		return cleanIdle
	}
	return max(cleanPause, time.Since(start))
}

func (l *Ledger) cleanBatch(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*l.opt.Timeout)
	defer cancel()
	var n int64
	err := l.withConn(ctx, func(conn *pgxpool.Conn) error {
		tx, err := conn.Begin(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
		var mine bool
		if err := tx.QueryRow(ctx, `select pg_try_advisory_xact_lock(hashtextextended('inboxd shared inbox', $1::regclass::oid::bigint))
			from (select set_config('lock_timeout', '1s', true)) as s`, l.table.name.Sanitize()).Scan(&mine); err != nil {
			return err
		}
		if !mine {
			return nil
		}
		tag, err := tx.Exec(ctx, l.table.deletion(), l.opt.Consumer, l.opt.Retention.Seconds(), cleanBatch)
		if err != nil {
			return err
		}
		n = tag.RowsAffected()
		return tx.Commit(ctx)
	})
	if err != nil {
		return 0, fmt.Errorf("deleting old rows: %w", err)
	}
	return n, nil
}

// deletion deletes only the consumer's own rows: another consumer of the same
// table may want its rows kept longer.
func (t table) deletion() string {
	name := t.name.Sanitize()
	return `delete from ` + name + ` as t where t.ctid = any (array(
  select o.ctid from ` + name + ` as o
  where o.consumer = $1::text and o.created_at < now() - make_interval(secs => $2::float8)
  limit $3::bigint))`
}
