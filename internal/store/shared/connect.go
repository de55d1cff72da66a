package shared

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// errStandby is the answer of a server that only follows: it may lack rows
// that are committed, so that nothing it says is worth anything.
var errStandby = errors.New("the server of the shared inbox is a standby: it may lack the newest rows")

func (o Options) readPassword(_ context.Context, c *pgx.ConnConfig) error {
	if o.PasswordFile == "" {
		return nil
	}
	p, err := readPasswordFile(o.PasswordFile)
	if err != nil {
		return err
	}
	c.Password = p
	return nil
}

// connect opens one connection of its own: to the primary where there is one
// among the hosts, else to whatever answers, for an examination to say so.
func (o Options) connect(ctx context.Context) (*pgx.Conn, error) {
	pool, err := o.poolConfig()
	if err != nil {
		return nil, err
	}
	c := pool.ConnConfig
	if err := o.readPassword(ctx, c); err != nil {
		return nil, err
	}
	conn, err := pgx.ConnectConfig(ctx, c)
	if err == nil {
		return conn, nil
	}
	c.ValidateConnect = nil
	if conn, anyErr := pgx.ConnectConfig(ctx, c); anyErr == nil {
		return conn, nil
	}
	return nil, err
}

// spoilt reports whether a connection that gave err must not be used again:
// the server behind it is going, gone, or no primary any more.
func spoilt(err error) bool {
	if err == nil {
		return false
	}
	if demoted(err) {
		return true
	}
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return true // not the server's word: the connection itself, or our deadline
	}
	switch pg.Code {
	case "57P01", "57P02", "57P03", // shutting down, crashed, starting up
		"0A000": // a cached plan or a changed result type
		return true
	}
	return strings.HasPrefix(pg.Code, "08")
}

// demoted reports whether the server is no primary any more.
func demoted(err error) bool {
	var pg *pgconn.PgError
	return errors.Is(err, errStandby) || errors.As(err, &pg) && pg.Code == "25006"
}
