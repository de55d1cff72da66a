package shared

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/inboxd/inboxd/internal/inbox"
	"github.com/inboxd/inboxd/internal/store/batch"
)

// Sizes of the look-ups: what two connections side by side carry best.
const (
	batchLimit   = 500
	batchFlights = 2
)

// Ledger is an inbox.Ledger on the evidence in the service's table. It never
// writes a record: only the service can. It keeps no leases; Lease adds them.
type Ledger struct {
	opt     Options
	log     *slog.Logger
	metrics *metrics
	pool    *pgxpool.Pool
	table   table
	looks   *batch.Batcher[*look]
	refused atomic.Pointer[RefusedError] // set while the table is not what it must be
}

// RefusedError says why the table is not fit to be an inbox.
type RefusedError struct {
	Findings []inbox.Finding // those that fail
}

func (e *RefusedError) Error() string {
	var b strings.Builder
	b.WriteString("the shared inbox is refused")
	for _, f := range e.Findings {
		fmt.Fprintf(&b, "\n%s: %s; remedy: %s", f.Subject, f.Detail, f.Remedy)
	}
	return b.String()
}

// Open examines the table and returns a Ledger that reads it. A table that
// cannot keep the promise is refused with a *RefusedError; any other error is
// about reaching the database. Close must be called.
func Open(ctx context.Context, o Options, log *slog.Logger, reg prometheus.Registerer) (*Ledger, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	t, findings, err := examine(ctx, o)
	if err != nil {
		return nil, err
	}
	for _, f := range findings {
		if f.Level == inbox.LevelWarn {
			log.Warn("shared inbox is not as it should be", "consumer", o.Consumer,
				"subject", f.Subject, "detail", f.Detail, "remedy", f.Remedy)
		}
	}
	if err := refusal(findings); err != nil {
		return nil, err
	}
	c, err := o.poolConfig()
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.NewWithConfig(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("opening the shared inbox: %w", err)
	}
	l := &Ledger{opt: o, log: log, metrics: newMetrics(reg, o.Consumer), pool: pool, table: t}
	l.looks = batch.New(batchLimit, min(batchFlights, o.MaxConns), l.flush)
	return l, nil
}

func refusal(findings []inbox.Finding) error {
	var failed []inbox.Finding
	for _, f := range findings {
		if f.Level == inbox.LevelFail {
			failed = append(failed, f)
		}
	}
	if failed == nil {
		return nil
	}
	return &RefusedError{Findings: failed}
}

// Close waits for the look-ups under way and closes the connections.
func (l *Ledger) Close() error {
	l.looks.Close()
	l.pool.Close()
	return nil
}

// Claim looks the key up on the primary. Without leases nothing is claimed:
// where the row is absent, the handler's own unique key decides between two
// requests.
func (l *Ledger) Claim(ctx context.Context, key inbox.Key, fp inbox.Fingerprint) (inbox.Claim, error) {
	c := inbox.Claim{Key: key, Fingerprint: fp}
	r, found, err := l.lookUp(ctx, key, opClaim)
	if err == nil && found {
		r.answer(&c)
	}
	return c, err
}

// ClaimAll implements inbox.Ledger.
func (l *Ledger) ClaimAll(claims []*inbox.Claiming) {
	looks := make([]*look, len(claims))
	for i, c := range claims {
		looks[i] = &look{key: c.Key}
	}
	err := l.lookUpAll(context.Background(), looks, opClaim)
	for i, c := range claims {
		c.Status, c.Err = inbox.ClaimNew, err
		if err == nil && looks[i].found {
			looks[i].row.answer(&c.Claim)
		}
	}
}

// answer tells that the row of c is there.
func (r *record) answer(c *inbox.Claim) {
	c.Status, c.RecordedAt, c.Age = inbox.ClaimRecorded, r.RecordedAt, r.age
	if !r.Fingerprint.Matches(c.Fingerprint) {
		c.Status = inbox.ClaimMismatch
	}
}

// Record looks for the evidence that the handler, which answered 2xx, must have
// left, and waits for it as long as the grace says. Without it the error is
// inbox.ErrNoEvidence where evidence is required. A row with another
// fingerprint is another message's evidence, under every policy but off.
func (l *Ledger) Record(ctx context.Context, c inbox.Claim) error {
	if l.opt.Evidence == EvidenceOff {
		return nil
	}
	r, found, late, err := l.await(ctx, c.Key)
	switch {
	case err != nil:
		return err
	case found && !r.Fingerprint.Matches(c.Fingerprint):
		l.metrics.evidence[resultOther].Inc()
		return fmt.Errorf("the row is of a message with another body: %w", inbox.ErrNoEvidence)
	case found && late:
		l.metrics.evidence[resultLate].Inc()
		return nil
	case found:
		l.metrics.evidence[resultPresent].Inc()
		return nil
	}
	l.metrics.evidence[resultAbsent].Inc()
	if l.opt.Evidence == EvidenceWarn {
		l.log.Warn("acked without evidence", "consumer", c.Key.Consumer, "message_id", string(c.Key.ID))
		return nil
	}
	return inbox.ErrNoEvidence
}

// Release does nothing: nothing was claimed.
func (l *Ledger) Release(inbox.Claim) {}

// Pauses between two looks for evidence that is late.
const (
	firstPause = 10 * time.Millisecond
	lastPause  = 250 * time.Millisecond
)

// await looks for the row of key until it is there or the grace is over. late
// is whether it was not there at first. ctx is the caller's: its end is an
// error, never an absent row.
func (l *Ledger) await(ctx context.Context, key inbox.Key) (r record, found, late bool, err error) {
	end := time.Now().Add(l.opt.Grace)
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		r, found, err = l.lookUp(ctx, key, opEvidence)
		if err != nil || found {
			return r, found, late, err
		}
		left := time.Until(end)
		if left <= 0 {
			return r, false, true, nil
		}
		late = true
		timer := time.NewTimer(min(pause, left))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return r, false, true, ctx.Err()
		}
	}
}

// Lookup returns the record of key, or inbox.ErrNotFound.
func (l *Ledger) Lookup(ctx context.Context, key inbox.Key) (inbox.Recorded, error) {
	r, found, err := l.lookUp(ctx, key, opClaim)
	if err != nil {
		return inbox.Recorded{}, err
	}
	if !found {
		return inbox.Recorded{}, inbox.ErrNotFound
	}
	return r.Recorded, nil
}

// Healthy reports whether the primary answers and the table was fit at the last
// examination.
func (l *Ledger) Healthy(ctx context.Context) error {
	_, _, err := l.lookUp(ctx, inbox.Key{Consumer: l.opt.Consumer, ID: "inboxd:health"}, opClaim)
	return err
}

// examineEvery is how often a table is examined again: its key may be dropped
// while we read it.
const examineEvery = time.Minute

// Run watches over the table and deletes old rows, where that is asked for,
// until ctx ends.
func (l *Ledger) Run(ctx context.Context) error {
	examined := time.NewTicker(examineEvery)
	defer examined.Stop()
	cleaned := time.NewTimer(0)
	defer cleaned.Stop()
	if l.opt.Retention <= 0 {
		cleaned.Stop()
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-examined.C:
			l.examineAgain(ctx)
		case <-cleaned.C:
			cleaned.Reset(l.clean(ctx))
		}
	}
}

func (l *Ledger) examineAgain(ctx context.Context) {
	_, findings, err := examine(ctx, l.opt)
	if err != nil {
		return // the look-ups say so louder
	}
	var refused *RefusedError
	if !errors.As(refusal(findings), &refused) {
		l.refused.Store(nil)
		return
	}
	if l.refused.Swap(refused) == nil {
		l.log.Error("shared inbox is refused", "consumer", l.opt.Consumer, "err", refused)
	}
}
