// Package postgres keeps the inbox in PostgreSQL, in a schema of its own: the
// store for several daemons on one queue. Claims and records are batches of one
// round trip each, on a connection of their own.
package postgres

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/inboxd/inboxd/internal/store"
	"github.com/inboxd/inboxd/internal/store/batch"
)

// Options say where the database is and how long records live in it.
type Options struct {
	// URL is a connection string as libpq knows it.
	URL string
	// Password, where set, is asked for at each dial, so that a changed secret
	// takes effect without a restart.
	Password func() (string, error)
	// Retention is how long records are kept; 0 means store.DefaultRetention.
	Retention time.Duration
	// Consumers are the configured consumers' names.
	Consumers []string
	// Leases keep two replicas from forwarding one key at the same time.
	Leases Leases
	// LeaseTime is how long the leases of a daemon that was killed hold others
	// up; 0 means fifteen seconds.
	LeaseTime time.Duration
	// CallTime bounds each call to the server; 0 means five seconds.
	CallTime time.Duration
}

// Leases says when leases are written.
type Leases uint8

// The choices.
const (
	LeasesAuto   Leases = iota // while another daemon uses the inbox
	LeasesAlways               // so that nobody waits for a daemon that died alone
	LeasesNever                // for a daemon that never has a replica
)

const (
	maxBatch  = 1000
	leaseTime = 15 * time.Second
	callTime  = 5 * time.Second
)

// Store is an inbox in PostgreSQL. Safe for concurrent use.
type Store struct {
	opts    Options
	log     *slog.Logger
	metrics *store.Metrics
	where   string
	id      string
	owner   string // this process's owner row
	self    process
	unclean bool // see UncleanStop
	pooled  bool // a connection pooler in transaction mode may be in between

	// Four pools, so that a person's list, the upkeep, claims and records do not
	// wait for one another.
	lookups, inserts, desk, upkeep *pgxpool.Pool

	claims    *batch.Batcher[claim]
	records   *batch.Batcher[*record]
	toRelease releases
	hand      hand
	waits     bool // for one that is alone, as was seen last; of the flushes of claims
	inHand    *inHand
	beaten    atomic.Int64 // when the owner row was last renewed, nanoseconds since opened
	opened    time.Time
	ended     atomic.Int64 // leases deleted since the table was last vacuumed

	closeOnce sync.Once
	recount   chan struct{}
}

var _ store.Store = (*Store)(nil)

// Open connects, brings the schema up to date and takes its place as an owner of
// leases. An error that wraps store.ErrSetup needs a person; any other may be
// over when Open is called again.
func Open(ctx context.Context, opts Options, log *slog.Logger, reg prometheus.Registerer) (_ *Store, err error) {
	s, err := newStore(opts, log)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.closePools()
			err = fmt.Errorf("opening %s: %w", s.where, err)
		}
	}()
	if err := s.connect(ctx); err != nil {
		return nil, setupError(err)
	}
	if err := s.migrate(ctx); err != nil {
		return nil, setupError(err)
	}
	if err := s.warnAboutServer(ctx); err != nil {
		return nil, setupError(err)
	}
	if err := s.buryPredecessors(ctx); err != nil {
		return nil, setupError(err)
	}
	s.metrics = store.NewMetrics(reg, opts.Consumers)
	p, err := s.beat(ctx)
	if err != nil {
		return nil, setupError(err)
	}
	s.metrics.Leases(s.leases())
	if s.leases() {
		s.waits = p.othersAlone
		if err := s.stand(p); err != nil {
			return nil, setupError(err)
		}
	}
	// One claim batch at a time: the order of claims and releases of one key is
	// then the order of the calls.
	s.claims = batch.New(maxBatch, 1, s.flushClaims)
	s.records = batch.New(maxBatch, 1, s.flushRecords)
	log.Info("inbox opened", "store", s.where, "store_id", s.id, "pooler", s.pooled, "unclean_stop", s.unclean)
	return s, nil
}

func newStore(opts Options, log *slog.Logger) (*Store, error) {
	if opts.Retention <= 0 {
		opts.Retention = store.DefaultRetention
	}
	if opts.LeaseTime <= 0 {
		opts.LeaseTime = leaseTime
	}
	if opts.CallTime <= 0 {
		opts.CallTime = callTime
	}
	cfg, err := pgx.ParseConfig(opts.URL)
	if err != nil {
		// The driver's message quotes the URL, password and all.
		return nil, fmt.Errorf("%w: the URL of the PostgreSQL store cannot be read", store.ErrSetup)
	}
	return &Store{
		opts:    opts,
		log:     log,
		where:   fmt.Sprintf("postgres://%s@%s/%s", cfg.User, net.JoinHostPort(cfg.Host, strconv.Itoa(int(cfg.Port))), cfg.Database),
		owner:   store.NewID(),
		self:    thisProcess(),
		opened:  time.Now(),
		inHand:  newInHand(),
		recount: make(chan struct{}, 1),
	}, nil
}

// Describe names the store for a log.
func (s *Store) Describe() string { return s.where }

// ID is the identity that the schema got when it was created.
func (s *Store) ID() string { return s.id }

// Close waits for the calls under way and gives up every lease at once.
func (s *Store) Close() error {
	s.closeOnce.Do(func() {
		s.claims.Close()
		s.records.Close()
		ctx, cancel := context.WithTimeout(context.Background(), s.opts.CallTime)
		defer cancel()
		if _, err := s.upkeep.Exec(ctx, "delete from inboxd.owner where id = $1", s.owner); err != nil {
			s.log.Warn("leases are not given up; they run out", "store", s.where, "err", err)
		}
		s.closePools()
	})
	return nil
}

func (s *Store) closePools() {
	for _, p := range []*pgxpool.Pool{s.lookups, s.inserts, s.desk, s.upkeep} {
		if p != nil {
			p.Close()
		}
	}
}

// ownerName tells a person whose lease it is; hostOf is the inverse.
func ownerName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	return store.PlainText(host + " pid " + strconv.Itoa(os.Getpid()))
}

func hostOf(owner string) string {
	host, _, _ := strings.Cut(owner, " pid ")
	return host
}
