// Package testenv gives tests, the demo and the benchmark real servers: a
// private RabbitMQ and a private PostgreSQL that can be killed, frozen and
// restarted, and a TCP proxy that cuts or stalls what goes through it. The
// product never imports it.
package testenv

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// The environment variables that name the servers tests may share. The command
// in the directory services starts both servers and sets them.
const (
	AMQPVar     = "INBOXD_TEST_AMQP_URL"
	DatabaseVar = "INBOXD_TEST_DATABASE_URL"
)

const connectTimeout = 10 * time.Second

// AMQPURL returns the URL of the shared RabbitMQ. Where there is none the test
// is skipped, or fails when CI is set: there a skipped test would be a lie.
func AMQPURL(t testing.TB) string {
	t.Helper()
	return require(t, AMQPVar)
}

// DatabaseURL creates an empty database on the shared PostgreSQL, which is
// dropped when the test ends, and returns its URL. Where there is no server the
// test is skipped, or fails when CI is set.
func DatabaseURL(t testing.TB) string {
	t.Helper()
	server := require(t, DatabaseVar)
	name := UniqueName("t")
	if err := execSQL(server, "CREATE DATABASE "+name+" TEMPLATE template0"); err != nil {
		t.Fatalf("creating a database for the test: %v", err)
	}
	t.Cleanup(func() {
		if err := execSQL(server, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)"); err != nil {
			t.Errorf("dropping the database of the test: %v", err)
		}
	})
	u, err := url.Parse(server)
	if err != nil {
		t.Fatalf("%s: %v", DatabaseVar, err)
	}
	u.Path = "/" + name
	return u.String()
}

// UniqueName returns prefix, an underscore and random lower-case characters:
// good for a queue, a database or a schema of a test's own.
func UniqueName(prefix string) string {
	return prefix + "_" + strings.ToLower(rand.Text())
}

func require(t testing.TB, name string) string {
	t.Helper()
	v := os.Getenv(name)
	switch {
	case v != "":
	case os.Getenv("CI") != "":
		t.Fatalf("%s is not set, and CI is: use `make test`, which starts the servers", name)
	default:
		t.Skipf("%s is not set: `make test` starts the servers", name)
	}
	return v
}

// Program returns the path of the first of these programs that is installed.
// Where none is, the test is skipped, or fails where CI is set.
func Program(t testing.TB, names ...string) string {
	t.Helper()
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	text := "not installed, which scripts/install-test-deps does: " + strings.Join(names, " or ")
	if os.Getenv("CI") != "" {
		t.Fatal(text)
	}
	t.Skip(text)
	return ""
}

// Exec runs SQL on the server at url.
func Exec(url, sql string) error { return execSQL(url, sql) }

func execSQL(server, sql string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 6*connectTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, server)
	if err != nil {
		return fmt.Errorf("connecting: %w", err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(ctx, sql); err != nil {
		return fmt.Errorf("executing: %w", err)
	}
	return nil
}
