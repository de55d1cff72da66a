package postgres

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/inboxd/inboxd/internal/store"
)

const (
	countEvery  = 10 * time.Second
	maxDelete   = 5000
	minDelete   = 50
	deletePause = 3 // times the time of the batch
	// vacuumAfter leases gone, their table is vacuumed: autovacuum looks only once
	// a minute, when a busy daemon has left some hundred thousand dead rows.
	vacuumAfter = 50000
)

// Run keeps this process's leases alive, deletes old records and refreshes the
// gauges until ctx ends.
func (s *Store) Run(ctx context.Context) error {
	beat := time.NewTicker(s.opts.LeaseTime / 4)
	defer beat.Stop()
	count := time.NewTicker(countEvery)
	defer count.Stop()
	clean := time.NewTimer(rand.N(time.Second)) // replicas that start together do not clean together
	defer clean.Stop()
	s.count(ctx)
	cleaned := make(chan time.Duration, 1)
	defer func() {
		// The cleaner uses the pools, which are closed after Run.
		if clean == nil {
			<-cleaned
		}
	}()
	for {
		var cleanC <-chan time.Time
		if clean != nil {
			cleanC = clean.C
		}
		select {
		case <-ctx.Done():
			return nil
		case <-beat.C:
			s.keepLeases(ctx)
		case <-count.C:
			s.count(ctx)
		case <-s.recount:
			s.count(ctx)
		case <-cleanC:
			clean = nil // under way; the heart must go on beating
			go func() { cleaned <- s.cleanAll(ctx) }()
		case next := <-cleaned:
			clean = time.NewTimer(next)
		}
	}
}

func (s *Store) keepLeases(ctx context.Context) {
	if s.sinceBeat() >= s.opts.LeaseTime/4 { // whoever asks whether we are healthy has it beat too
		start := time.Now()
		err := s.beatAndStand(ctx)
		s.metrics.Done(store.OpHeartbeat, start, err)
		if err != nil {
			return // counted; claims report an unreachable store themselves
		}
	}
	s.releaseLeftovers()
	if s.ended.Load() > vacuumAfter {
		s.ended.Store(0)
		err := s.try(ctx, s.upkeep, s.opts.CallTime, func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, "vacuum (skip_locked) inboxd.lease", pgx.QueryExecModeExec)
			return err
		})
		if err != nil {
			s.log.Debug("leases not vacuumed", "store", s.where, "err", err)
		}
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

// deleteSQL deletes up to $3 records, the oldest first, that are older than $1
// by the server's clock and by ours: one clock that jumps ahead deletes nothing.
// The lock makes one daemon at a time the cleaner; where another is, nothing is
// deleted and null returned.
const deleteSQL = `with cleaner as materialized (select pg_try_advisory_xact_lock($4) as ours),
	old as (
		select ctid from inboxd.processed
		where (select ours from cleaner) and processed_at < least(now(), $2::timestamptz) - $1::interval
		order by processed_at limit $3 for update skip locked),
	gone as (delete from inboxd.processed where ctid = any(array(select ctid from old)) returning 1)
	select case when (select ours from cleaner) then (select count(*) from gone) end`

// cleanAll deletes what is older than the retention and returns when to look again.
func (s *Store) cleanAll(ctx context.Context) time.Duration {
	interval := min(max(s.opts.Retention/100, time.Minute), time.Hour)
	// Owners that are long gone; what they held is free anyway.
	if _, err := s.upkeep.Exec(ctx, "delete from inboxd.owner where expires_at < now() - interval '1 hour'"); err == nil {
		_, _ = s.upkeep.Exec(ctx, "delete from inboxd.lease l where not exists (select from inboxd.owner o where o.id = l.owner)")
	}
	size := maxDelete
	for ctx.Err() == nil {
		start := time.Now()
		n, ours, err := s.cleanBatch(ctx, size)
		switch {
		case ctx.Err() != nil:
			return interval
		case err != nil && state(err) == "57014" && size > minDelete:
			size /= 2 // a slow server gets smaller bites
		case err != nil:
			s.log.Warn("old records not deleted", "store", s.where, "err", err)
			return min(interval, time.Minute)
		case !ours || n < int64(size):
			return interval
		}
		select {
		case <-ctx.Done():
		case <-time.After(deletePause * time.Since(start)):
		}
	}
	return interval
}

func (s *Store) cleanBatch(ctx context.Context, size int) (n int64, ours bool, err error) {
	start := time.Now()
	defer func() { s.metrics.Done(store.OpRetention, start, err) }()
	var deleted *int64
	err = s.try(ctx, s.upkeep, s.opts.CallTime, func(ctx context.Context, conn *pgx.Conn) error {
		return s.inTx(ctx, conn, func(tx pgx.Tx) error {
			return tx.QueryRow(ctx, deleteSQL, s.opts.Retention, time.Now(), size, int64(cleanerLock)).Scan(&deleted)
		})
	})
	if err != nil {
		return 0, false, fmt.Errorf("retention: %w", err)
	}
	if deleted == nil {
		return 0, false, nil
	}
	s.metrics.Size(store.OpRetention, int(*deleted))
	s.metrics.Deleted(*deleted)
	return *deleted, true, nil
}

// Healthy returns nil while the server takes our writes.
func (s *Store) Healthy(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.beatAndStand(ctx)
}
