package shared

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Evidence says what a 2xx without a row in the table is worth.
type Evidence string

// The policies.
const (
	EvidenceRequire Evidence = "require" // never acked: inbox.ErrNoEvidence
	EvidenceWarn    Evidence = "warn"    // counted and acked
	EvidenceOff     Evidence = "off"     // not looked for
)

// Options of one shared inbox. URL and Consumer have no default.
type Options struct {
	// Consumer is the consumer that the table is read for; it labels metrics
	// and log lines.
	Consumer string
	// URL names the service's database. Several hosts may stand in it; only a
	// primary is ever read.
	URL string
	// PasswordFile is read at each dial, where it is set.
	PasswordFile string
	Table        string   // NAME or SCHEMA.NAME; default inbox
	Evidence     Evidence // default require
	// Grace is how long a row that is absent after a 2xx is waited for:
	// handlers that answer 202 commit a little later. Default 2s; negative: not
	// at all.
	Grace time.Duration
	// Timeout bounds each statement, its connection included. Default 2s.
	Timeout time.Duration
	// Retention deletes rows older than this, where the role may; 0: the
	// service cleans up by itself.
	Retention time.Duration
	// MaxConns bounds the connections to the database. Default 4.
	MaxConns int
}

func (o Options) withDefaults() Options {
	if o.Table == "" {
		o.Table = DefaultTable
	}
	if o.Evidence == "" {
		o.Evidence = EvidenceRequire
	}
	if o.Grace == 0 {
		o.Grace = 2 * time.Second
	}
	if o.Timeout <= 0 {
		o.Timeout = 2 * time.Second
	}
	if o.MaxConns <= 0 {
		o.MaxConns = 4
	}
	return o
}

// Validate reports every problem that can be seen without a connection.
func (o Options) Validate() error {
	o = o.withDefaults()
	var errs []error
	if _, err := pgconn.ParseConfig(o.URL); err != nil {
		errs = append(errs, errors.New("url: is no PostgreSQL URL")) // err may show the password
	}
	if _, err := parseTable(o.Table); err != nil {
		errs = append(errs, err)
	}
	switch o.Evidence {
	case EvidenceRequire, EvidenceWarn, EvidenceOff:
	default:
		errs = append(errs, fmt.Errorf("evidence: must be require, warn or off, got %q", o.Evidence))
	}
	if o.Retention < 0 {
		errs = append(errs, fmt.Errorf("retention: must not be negative, got %v", o.Retention))
	}
	return errors.Join(errs...)
}

func (o Options) poolConfig() (*pgxpool.Config, error) {
	c, err := pgxpool.ParseConfig(o.URL)
	if err != nil {
		return nil, errors.New("the URL of the shared inbox is no PostgreSQL URL")
	}
	c.MaxConns = int32(min(o.MaxConns, 1000))
	c.MaxConnIdleTime = 5 * time.Minute
	c.MaxConnLifetime = time.Hour
	c.MaxConnLifetimeJitter = 5 * time.Minute
	o.dress(c.ConnConfig)
	if c.ConnConfig.ValidateConnect == nil {
		c.ConnConfig.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsPrimary
	}
	c.BeforeConnect = o.readPassword
	return c, nil
}

// dress sets what every connection of ours has.
func (o Options) dress(c *pgx.ConnConfig) {
	// Parameters go with the statement: nothing is left in the session, so
	// that a pooler may change it under us, and every plan is made for the
	// table as it is.
	c.DefaultQueryExecMode = pgx.QueryExecModeExec
	c.ConnectTimeout = o.Timeout
	if _, set := c.RuntimeParams["application_name"]; !set {
		c.RuntimeParams["application_name"] = "inboxd"
	}
}

func readPasswordFile(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("reading the password: %w", err)
	}
	return strings.TrimRight(string(b), "\r\n"), nil
}
