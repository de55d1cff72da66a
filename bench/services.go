package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/inboxd/inboxd/internal/testenv"
)

// servers are the broker and the database of a session, private ones unless
// the environment names others.
type servers struct {
	amqpURL, databaseURL string
	brokerPID, dbPID     int
	fsync                string
	brokerVersion        string
	dbVersion            string

	rabbit   *testenv.Rabbit
	postgres *testenv.Postgres
}

type serverFlags struct{ amqpURL, databaseURL *string }

func addServerFlags(fs *flag.FlagSet) serverFlags {
	return serverFlags{
		amqpURL:     fs.String("amqp", os.Getenv(testenv.AMQPVar), "broker to use; a private one is started where empty"),
		databaseURL: fs.String("database", os.Getenv(testenv.DatabaseVar), "PostgreSQL to use; a private one is started where empty"),
	}
}

// startServers starts what the flags do not name. The caller stops them, also
// after an error.
func startServers(ctx context.Context, f serverFlags) (*servers, error) {
	s := &servers{amqpURL: *f.amqpURL, databaseURL: *f.databaseURL}
	var g errgroup.Group
	g.Go(func() (err error) {
		if s.amqpURL == "" {
			if s.rabbit, err = testenv.StartRabbit(testenv.Options{}); err == nil {
				s.amqpURL = s.rabbit.URL
			}
		}
		return err
	})
	g.Go(func() (err error) {
		if s.databaseURL == "" {
			if s.postgres, err = testenv.StartPostgres(testenv.Options{}); err == nil {
				s.databaseURL = s.postgres.URL
			}
		}
		return err
	})
	if err := g.Wait(); err != nil {
		return s, err
	}
	return s, s.examine(ctx)
}

func (s *servers) examine(ctx context.Context) error {
	broker, err := url.Parse(s.amqpURL)
	if err != nil {
		return fmt.Errorf("broker URL: %w", err)
	}
	database, err := url.Parse(s.databaseURL)
	if err != nil {
		return fmt.Errorf("database URL: %w", err)
	}
	s.brokerPID, s.dbPID = listenerPID(broker.Host), listenerPID(database.Host)

	conn, _, err := openChannel(s.amqpURL)
	if err != nil {
		return err
	}
	s.brokerVersion = fmt.Sprint(conn.Properties["version"])
	if err := conn.Close(); err != nil {
		return err
	}
	return s.withDatabase(ctx, s.databaseURL, func(db *pgx.Conn) error {
		return db.QueryRow(ctx, `SELECT current_setting('server_version'), current_setting('fsync')`).
			Scan(&s.dbVersion, &s.fsync)
	})
}

func (s *servers) stop() error {
	if s == nil {
		return nil
	}
	var errs []error
	if s.rabbit != nil {
		errs = append(errs, s.rabbit.Stop())
	}
	if s.postgres != nil {
		errs = append(errs, s.postgres.Stop())
	}
	return errors.Join(errs...)
}

func (s *servers) withDatabase(ctx context.Context, url string, do func(*pgx.Conn) error) error {
	db, err := pgx.Connect(ctx, url)
	if err != nil {
		return fmt.Errorf("connecting to PostgreSQL: %w", err)
	}
	defer db.Close(context.WithoutCancel(ctx))
	return do(db)
}

// createDatabase makes an empty database and returns its URL and its end.
func (s *servers) createDatabase(ctx context.Context) (dbURL string, drop func() error, err error) {
	u, err := url.Parse(s.databaseURL)
	if err != nil {
		return "", nil, fmt.Errorf("database URL: %w", err)
	}
	name := testenv.UniqueName("bench")
	exec := func(ctx context.Context, sql string) error {
		return s.withDatabase(ctx, s.databaseURL, func(db *pgx.Conn) error {
			_, err := db.Exec(ctx, sql)
			return err
		})
	}
	if err := exec(ctx, "CREATE DATABASE "+name); err != nil {
		return "", nil, fmt.Errorf("creating a database: %w", err)
	}
	u.Path = "/" + name
	return u.String(), func() error {
		return exec(context.WithoutCancel(ctx), "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)")
	}, nil
}

// settle gives the servers the time to finish what they do in the background,
// writing the segments of a filled queue above all: until broker and database
// together use less than a tenth of a core, at most limit.
func (s *servers) settle(ctx context.Context, limit time.Duration) {
	const window = 300 * time.Millisecond
	for end := time.Now().Add(limit); time.Now().Before(end) && ctx.Err() == nil; {
		before := cpuTime(s.brokerPID) + cpuTime(s.dbPID)
		sleep(ctx, window)
		if cpuTime(s.brokerPID)+cpuTime(s.dbPID)-before < window/10 {
			return
		}
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
