// Package sqlite keeps the inbox in one SQLite file beside the daemon: the store
// that needs no server. Durability is SQLite's own (write-ahead log, fsync at
// each commit), paid for by group commit.
package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/inboxd/inboxd/internal/inbox"
	"github.com/inboxd/inboxd/internal/store"
	"github.com/inboxd/inboxd/internal/store/batch"
)

// Options say where the file is and how long records live in it.
type Options struct {
	// Path of the database file. Its directory must exist; the file is created
	// where it does not.
	Path string
	// Retention is how long records are kept; 0 means store.DefaultRetention.
	Retention time.Duration
	// Consumers are the configured consumers' names.
	Consumers []string
	// CheckTime bounds the integrity check at start; 0 means two seconds.
	CheckTime time.Duration
}

const (
	maxBatch  = 1000
	checkTime = 2 * time.Second
)

// Store is an inbox in one SQLite file. Safe for concurrent use.
//
// There are three pools of connections: one connection writes, one looks up, two
// read for people, so that a long list delays neither of the others. Writes
// never carry a context that can be cancelled: an interrupted one would leave
// its outcome open.
type Store struct {
	opts    Options
	log     *slog.Logger
	metrics *store.Metrics
	lock    *os.File
	files   *files
	id      string

	write, look, desk *sql.DB
	lookUp, insert    *sql.Stmt
	claims            *batch.Batcher[*inbox.Claiming]
	records           *batch.Batcher[*record]
	writes            *batch.Batcher[*write]
	consumers         consumers
	base              time.Time // see retentionNow
	opened            time.Time
	lastWrite         atomic.Int64 // Unix milliseconds
	writeFailed       atomic.Bool  // until a probe succeeds
	broken            atomic.Pointer[error]
	closeOnce         sync.Once
	closeErr          error
	recount           chan struct{}
	unavailable       atomic.Bool // as last logged
	unclean           bool
	marked            atomic.Bool // as running
}

var _ store.Store = (*Store)(nil)

// Open opens or creates the store. An error that wraps store.ErrSetup needs a
// person; ErrInUse means that another process has the file.
func Open(ctx context.Context, opts Options, log *slog.Logger, reg prometheus.Registerer) (_ *Store, err error) {
	opts.Retention = max(opts.Retention, 0)
	if opts.Retention == 0 {
		opts.Retention = store.DefaultRetention
	}
	if opts.CheckTime == 0 {
		opts.CheckTime = checkTime
	}
	s := &Store{opts: opts, log: log, opened: time.Now(), recount: make(chan struct{}, 1)}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("opening %s: %w", s.Describe(), err), s.closeFiles())
		}
	}()
	if err := checkPlace(opts.Path); err != nil {
		return nil, err
	}
	if s.lock, err = lockFile(opts.Path + lockSuffix); err != nil {
		return nil, err
	}
	created, err := createFile(opts.Path)
	if err != nil {
		return nil, err
	}
	s.unclean = !created && nonEmpty(opts.Path+walSuffix)
	if err := s.connect(ctx); err != nil {
		return nil, err
	}
	if err := s.checkIntegrity(ctx, created, s.unclean); err != nil {
		return nil, err
	}
	if err := s.migrate(ctx); err != nil {
		return nil, err
	}
	if err := s.prepare(ctx); err != nil {
		return nil, err
	}
	if err := s.keepReserve(); err != nil {
		log.Warn("the disk is nearly full: no space could be set aside for the inbox", "store", s.Describe(), "err", err)
	}
	s.metrics = store.NewMetrics(reg, opts.Consumers)
	s.claims = batch.New(maxBatch, 1, s.flushClaims)
	s.records = batch.New(maxBatch, 1, s.flushRecords)
	s.writes = batch.New(maxWrites, 1, s.flushWrites)
	if created {
		// A missing volume looks exactly like a first start: say it loudly.
		log.Warn("new inbox created: nothing is known to be processed",
			"store", s.Describe(), "store_id", s.id)
	} else {
		log.Info("inbox opened", "store", s.Describe(), "store_id", s.id, "unclean_stop", s.unclean)
	}
	return s, nil
}

// Describe names the store for a log.
func (s *Store) Describe() string { return "sqlite:" + s.opts.Path }

// UncleanStop implements store.Store: whoever had the file left a log behind,
// which Close empties, or the mark of Run.
func (s *Store) UncleanStop() bool { return s.unclean }

// ID is the identity that the file got when it was created.
func (s *Store) ID() string { return s.id }

// connect opens the pools and proves that the settings took.
func (s *Store) connect(ctx context.Context) error {
	writing := []string{
		"busy_timeout(5000)", "journal_mode(wal)", "synchronous(full)",
		"wal_autocheckpoint(4000)", fmt.Sprintf("journal_size_limit(%d)", walLimit),
		"cache_size(-8000)", "foreign_keys(off)", "trusted_schema(off)",
	}
	reading := []string{"busy_timeout(5000)", "query_only(on)", "cache_size(-8000)", "trusted_schema(off)"}
	var err error
	if s.write, err = openPool(s.opts.Path, 1, writing); err != nil {
		return err
	}
	if s.look, err = openPool(s.opts.Path, 1, reading); err != nil {
		return err
	}
	if s.desk, err = openPool(s.opts.Path, 2, reading); err != nil {
		return err
	}
	var version, journal string
	var sync int
	if err := s.write.QueryRowContext(ctx, "select sqlite_version()").Scan(&version); err != nil {
		return setupError(err)
	}
	if !atLeast(version, minVersion) {
		return fmt.Errorf("%w: SQLite %s can lose committed records; %s or later is needed: build inboxd with a newer modernc.org/sqlite",
			store.ErrSetup, version, minVersion)
	}
	if err := s.write.QueryRowContext(ctx, "pragma journal_mode").Scan(&journal); err != nil {
		return setupError(err)
	}
	if err := s.write.QueryRowContext(ctx, "pragma synchronous").Scan(&sync); err != nil {
		return setupError(err)
	}
	if journal != "wal" || sync != 2 {
		return fmt.Errorf("%w: the file system does not let SQLite use its write-ahead log (journal_mode %s, synchronous %d): use a local disk",
			store.ErrSetup, journal, sync)
	}
	return nil
}

func openPool(path string, conns int, pragmas []string) (*sql.DB, error) {
	q := url.Values{"_txlock": {"immediate"}}
	for _, p := range pragmas {
		q.Add("_pragma", p)
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	dsn := url.URL{Scheme: "file", Path: abs, RawQuery: q.Encode()}
	db, err := sql.Open("sqlite", dsn.String())
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	return db, nil
}

func (s *Store) prepare(ctx context.Context) error {
	// Consumption may not start on a file that cannot be written, so the first
	// write happens here. It also makes the log exist, which files watches.
	_, err := s.write.ExecContext(ctx, `insert into meta values ('opened', ?1)
		on conflict (key) do update set value = excluded.value`, time.Now().UTC().Format(time.RFC3339Nano))
	if err != nil {
		return setupError(err)
	}
	var runs bool
	if err := s.write.QueryRowContext(ctx, "select exists (select 1 from meta where key = 'running')").Scan(&runs); err != nil {
		return setupError(err)
	}
	s.unclean = s.unclean || runs
	// Whoever had taken messages up is gone: the lock is ours.
	if _, err := s.write.ExecContext(ctx, "update parked set taken = 0 where taken <> 0"); err != nil {
		return setupError(err)
	}
	if err := s.write.QueryRowContext(ctx, "select value from meta where key = 'store_id'").Scan(&s.id); err != nil {
		return setupError(err)
	}
	if s.base, err = s.newest(ctx); err != nil {
		return setupError(err)
	}
	if err := s.consumers.load(ctx, s.write); err != nil {
		return setupError(err)
	}
	if s.lookUp, err = s.look.PrepareContext(ctx, lookUpSQL); err != nil {
		return setupError(err)
	}
	if s.insert, err = s.write.PrepareContext(ctx, insertSQL); err != nil {
		return setupError(err)
	}
	s.files, err = watch(s.opts.Path)
	return err
}

// Close waits for the calls under way, writes the log back into the file and
// lets other processes have it.
func (s *Store) Close() error {
	s.closeOnce.Do(func() {
		s.claims.Close()
		s.records.Close()
		s.writes.Close()
		if s.marked.Load() {
			s.mark(false)
		}
		s.closeErr = s.closeFiles()
	})
	return s.closeErr
}

// mark notes in the file that a daemon runs on it, or does no more. The log alone
// does not tell: it is cut while nothing happens, and by whoever only looks at
// the file.
func (s *Store) mark(running bool) {
	do := "insert into meta values ('running', '') on conflict (key) do nothing"
	if !running {
		do = "delete from meta where key = 'running'"
	}
	if _, err := s.write.ExecContext(context.Background(), do); err != nil {
		s.log.Warn("an unclean stop may be told wrongly", "store", s.Describe(), "err", err)
	}
	s.marked.Store(running)
}

func (s *Store) closeFiles() error {
	var errs []error
	for _, db := range []*sql.DB{s.desk, s.look, s.write} { // the writer last: it empties the log
		if db != nil {
			errs = append(errs, db.Close())
		}
	}
	if s.lock != nil {
		errs = append(errs, s.lock.Close())
	}
	return errors.Join(errs...)
}

// unexpected hides the answers that are no failure of the store.
func unexpected(err error) error {
	if errors.Is(err, inbox.ErrNotFound) {
		return nil
	}
	return err
}

// atLeast compares dotted versions.
func atLeast(version, least string) bool {
	var v, l [3]int
	_, _ = fmt.Sscanf(version, "%d.%d.%d", &v[0], &v[1], &v[2])
	_, _ = fmt.Sscanf(least, "%d.%d.%d", &l[0], &l[1], &l[2])
	for i := range v {
		if v[i] != l[i] {
			return v[i] > l[i]
		}
	}
	return !strings.Contains(version, "alpha")
}
