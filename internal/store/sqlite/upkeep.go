package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/inboxd/inboxd/internal/store"
)

const (
	watchEvery = 5 * time.Second
	countEvery = 10 * time.Second
	// A log that nobody wrote to for idleAfter is written back and cut to
	// nothing; one beyond walLimit at once.
	idleAfter = 5 * time.Second
	// One transaction of the retention holds the writer for some ten
	// milliseconds, and then leaves it alone for three times as long.
	deleteBatch = 1000
	deletePause = 3
	probeBytes  = 256 << 10
)

// Run watches the file, bounds the log, deletes old records and refreshes the
// gauges until ctx ends.
func (s *Store) Run(ctx context.Context) error {
	watch := time.NewTicker(watchEvery)
	defer watch.Stop()
	count := time.NewTicker(countEvery)
	defer count.Stop()
	clean := time.NewTimer(0)
	defer clean.Stop()
	s.mark(true)
	s.count(ctx)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-watch.C:
			s.watch()
			s.checkpoint()
		case <-count.C:
			s.count(ctx)
		case <-s.recount:
			s.count(ctx)
		case <-clean.C:
			if err := s.clean(ctx); err != nil && ctx.Err() == nil {
				s.log.Warn("old records not deleted", "store", s.Describe(), "err", err)
			}
			clean.Reset(min(max(s.opts.Retention/100, time.Minute), time.Hour))
		}
	}
}

// watch says once that the store went away, and once that it is back.
func (s *Store) watch() {
	err := errors.Join(s.usable(), s.files.check())
	if gone := err != nil; gone != s.unavailable.Swap(gone) {
		if gone {
			s.log.Error("the inbox is gone: nothing is consumed until it is back", "store", s.Describe(), "err", err)
		} else {
			s.log.Info("the inbox is back", "store", s.Describe())
		}
	}
}

func (s *Store) checkpoint() {
	info, err := os.Stat(s.opts.Path + walSuffix)
	if err != nil || info.Size() == 0 || s.usable() != nil || s.files.check() != nil {
		return
	}
	idle := time.Since(time.UnixMilli(s.lastWrite.Load())) > idleAfter
	if !idle && info.Size() <= walLimit {
		return
	}
	if _, err := s.write.ExecContext(context.Background(), "pragma wal_checkpoint(truncate)"); err != nil {
		s.log.Warn("the write-ahead log could not be written back", "store", s.Describe(), "bytes", info.Size(), "err", s.wrote(err))
	}
}

func (s *Store) countSoon() {
	select {
	case s.recount <- struct{}{}:
	default:
	}
}

func (s *Store) count(ctx context.Context) {
	counts, err := s.CountParked(ctx)
	if err != nil {
		return // counted as an error already; the gauge keeps its value
	}
	sums := make(map[string]int64)
	for _, c := range counts {
		sums[c.Consumer] += c.Count
	}
	s.metrics.Parked(sums)
}

// newest is when the youngest record was made, now where there is none.
func (s *Store) newest(ctx context.Context) (time.Time, error) {
	var at sql.NullInt64
	if err := s.write.QueryRowContext(ctx, "select max(recorded_at) from processed").Scan(&at); err != nil {
		return time.Time{}, err
	}
	if !at.Valid {
		return s.opened, nil
	}
	return store.FromMillis(at.Int64), nil
}

// retentionNow is the time that ages are counted to: the wall clock, but never
// more than the youngest record at start plus the time that has really gone by.
// A clock that jumps ahead by a year does not empty the inbox. After a long stop
// records live longer by that stop.
func (s *Store) retentionNow() time.Time {
	now := time.Now()
	if latest := s.base.Add(now.Sub(s.opened)); latest.Before(now) {
		return latest
	}
	return now
}

// clean deletes what is older than the retention, in small paced transactions.
func (s *Store) clean(ctx context.Context) error {
	before := s.retentionNow().Add(-s.opts.Retention)
	for ctx.Err() == nil {
		start := time.Now()
		n, err := s.cleanBatch(ctx, before)
		if err != nil {
			return err
		}
		if n < deleteBatch {
			return nil
		}
		select {
		case <-ctx.Done():
		case <-time.After(deletePause * time.Since(start)):
		}
	}
	return nil
}

func (s *Store) cleanBatch(ctx context.Context, before time.Time) (n int64, err error) {
	err = s.inWrite(ctx, store.OpRetention, func(ctx context.Context, tx *sql.Tx) error {
		result, err := tx.ExecContext(ctx, deleteSQL, before.UnixMilli(), deleteBatch)
		if err != nil {
			return err
		}
		n, err = result.RowsAffected()
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("retention: %w", err)
	}
	s.metrics.Size(store.OpRetention, int(n))
	s.metrics.Deleted(n)
	return n, nil
}

const deleteSQL = `delete from processed where (consumer, message_id) in (
	select consumer, message_id from processed where recorded_at < ?1 order by recorded_at limit ?2)`

// Healthy returns nil while the store can record.
func (s *Store) Healthy(ctx context.Context) error {
	if err := errors.Join(s.usable(), s.files.check()); err != nil {
		return err
	}
	if s.writeFailed.Load() {
		if err := s.rescue(ctx); err != nil {
			return err
		}
		return s.probe(ctx)
	}
	var one int
	return s.desk.QueryRowContext(ctx, "select 1").Scan(&one)
}

// probe writes more than a batch of records needs: on a disk that is nearly full
// small writes go through while larger ones fail.
func (s *Store) probe(ctx context.Context) error {
	err := s.inWrite(ctx, store.OpDesk, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `insert into meta values ('probe', hex(zeroblob(?1)))
			on conflict (key) do update set value = excluded.value`, probeBytes/2)
		return err
	})
	if err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	err = s.inWrite(ctx, store.OpDesk, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "delete from meta where key = 'probe'")
		return err
	})
	if err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	s.writeFailed.Store(false)
	s.log.Info("the inbox can be written again", "store", s.Describe())
	return nil
}
