package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/inboxd/inboxd/internal/inbox"
	"github.com/inboxd/inboxd/internal/store"
)

// settingsSQL makes a session, or with $1 true only a transaction, fit for us
// whatever the server's defaults are (behind a pooler a session's settings belong
// to somebody else by the next statement). A commit is durable here; a stricter
// setting is left alone. Plans are index probes whatever the statistics say: on
// a table that grew since its last analyze the planner would scan it.
const settingsSQL = `select
	set_config('synchronous_commit', case when current_setting('synchronous_commit') in ('off', 'local')
		then 'on' else current_setting('synchronous_commit') end, $1),
	set_config('default_transaction_isolation', 'read committed', $1),
	set_config('statement_timeout', $2, $1),
	set_config('lock_timeout', $3, $1),
	set_config('idle_in_transaction_session_timeout', $2, $1),
	set_config('enable_seqscan', 'off', $1),
	set_config('jit', 'off', $1)`

const beginSQL = "begin isolation level read committed read write"

func (s *Store) settings(local bool) []any {
	// The server gives up before we do, so that its answer is known.
	statement := fmt.Sprintf("%dms", (s.opts.CallTime * 8 / 10).Milliseconds())
	lock := fmt.Sprintf("%dms", (s.opts.CallTime * 4 / 10).Milliseconds())
	return []any{local, statement, lock}
}

func (s *Store) connect(ctx context.Context) (err error) {
	if s.pooled, err = s.findPooler(ctx); err != nil {
		return err
	}
	for _, p := range []struct {
		to    **pgxpool.Pool
		conns int32
	}{{&s.lookups, 1}, {&s.inserts, 1}, {&s.desk, 4}, {&s.upkeep, 2}} {
		if *p.to, err = s.newPool(ctx, p.conns); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) poolConfig() (*pgxpool.Config, error) {
	cfg, err := pgxpool.ParseConfig(s.opts.URL)
	if err != nil {
		return nil, fmt.Errorf("%w: the URL of the PostgreSQL store cannot be read", store.ErrSetup)
	}
	c := cfg.ConnConfig
	if c.ConnectTimeout == 0 || c.ConnectTimeout > s.opts.CallTime {
		c.ConnectTimeout = s.opts.CallTime
	}
	if c.RuntimeParams["application_name"] == "" {
		c.RuntimeParams["application_name"] = "inboxd"
	}
	if c.ValidateConnect == nil {
		// After a failover a standby answers under the old address.
		c.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	cfg.BeforeConnect = s.beforeConnect
	cfg.MinConns = 0
	cfg.MaxConnLifetimeJitter = cfg.MaxConnLifetime / 10
	// A connection that died is found out by the call, which is repeated.
	cfg.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	return cfg, nil
}

func (s *Store) beforeConnect(_ context.Context, c *pgx.ConnConfig) error {
	if s.opts.Password == nil {
		return nil
	}
	password, err := s.opts.Password()
	if err != nil {
		return fmt.Errorf("password: %w", err)
	}
	c.Password = password
	return nil
}

func (s *Store) newPool(ctx context.Context, conns int32) (*pgxpool.Pool, error) {
	cfg, err := s.poolConfig()
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = conns
	if s.pooled {
		// No prepared statement outlives its transaction there.
		cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	} else {
		cfg.AfterConnect = func(ctx context.Context, c *pgx.Conn) error {
			_, err := c.Exec(ctx, settingsSQL, s.settings(false)...)
			return err
		}
	}
	return pgxpool.NewWithConfig(ctx, cfg)
}

// findPooler reports whether somebody stands between us and the server: the
// process that the connection names is then not the one that answers.
func (s *Store) findPooler(ctx context.Context) (bool, error) {
	cfg, err := s.poolConfig()
	if err != nil {
		return false, err
	}
	c := cfg.ConnConfig
	if err := s.beforeConnect(ctx, c); err != nil {
		return false, err
	}
	conn, err := pgx.ConnectConfig(ctx, c)
	if err != nil {
		return false, err
	}
	defer conn.Close(ctx)
	var pid uint32
	err = conn.QueryRow(ctx, "select pg_backend_pid()", pgx.QueryExecModeExec).Scan(&pid)
	return pid != conn.PgConn().PID(), err
}

// warnAboutServer reads the settings that decide what a commit is worth.
func (s *Store) warnAboutServer(ctx context.Context) error {
	findings, err := s.examineServer(ctx)
	if err != nil {
		return err
	}
	for _, f := range findings {
		if f.Level != inbox.LevelOK {
			s.log.Warn("database server", "store", s.where, "finding", f.Detail, "remedy", f.Remedy)
		}
	}
	return nil
}

// try runs do once on a connection of p, within the time of one call. The
// connection is closed where the error says that it may be of no use any more.
func (s *Store) try(ctx context.Context, p *pgxpool.Pool, limit time.Duration, do func(context.Context, *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	conn, err := p.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("connecting: %w", err)
	}
	defer conn.Release() // closes it where a transaction was left open
	if err := do(ctx, conn.Conn()); err != nil {
		if spoilt(err) {
			_ = conn.Conn().PgConn().Close(ctx)
		}
		return err
	}
	return nil
}

const (
	maxTries   = 3
	retryPause = 50 * time.Millisecond
)

// call runs do, and again where nobody knows what became of it or the server
// asks for that: everything we do is idempotent. Nothing that has begun is
// cancelled; it has its time limit.
func (s *Store) call(ctx context.Context, op store.Operation, p *pgxpool.Pool, do func(context.Context, *pgx.Conn) error) error {
	return s.callFor(ctx, s.opts.CallTime, op, p, do)
}

// callFor is call with a time limit of its own for each try.
func (s *Store) callFor(ctx context.Context, limit time.Duration, op store.Operation, p *pgxpool.Pool, do func(context.Context, *pgx.Conn) error) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	start := time.Now()
	defer func() { s.metrics.Done(op, start, unexpected(err)) }()
	ctx = context.WithoutCancel(ctx)
	for n := 1; ; n++ {
		err = s.try(ctx, p, limit, do)
		if err == nil || n == maxTries || !repeatable(err) || time.Since(start) > limit {
			return err
		}
		time.Sleep(retryPause * time.Duration(n))
	}
}

// statements collects what is sent in one round trip: transactions, one after
// the other, each statement with a snapshot of its own.
type statements struct {
	pgx.Batch
	settings []any // where each transaction must bring its own
}

// transaction queues what do queues as one transaction.
func (b *statements) transaction(do func()) {
	b.Queue(beginSQL)
	if b.settings != nil {
		b.Queue(settingsSQL, b.settings...)
	}
	do()
	b.Queue("commit")
}

// send runs what queue queues in one round trip. What it queues outside of
// transaction, at the end, is one transaction as well: the server ends an
// implicit one with the round trip, which saves a begin and a commit.
func (s *Store) send(ctx context.Context, conn *pgx.Conn, queue func(*statements)) error {
	var b statements
	if s.pooled {
		b.settings = s.settings(true)
	}
	queue(&b)
	return conn.SendBatch(ctx, &b.Batch).Close()
}

// last queues what do queues as the only or last transaction of a round trip.
func (b *statements) last(do func()) {
	if b.settings != nil {
		b.transaction(do)
		return
	}
	do()
}
