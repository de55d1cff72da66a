package postgres

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/inboxd/inboxd/internal/store/storetest"
	"github.com/inboxd/inboxd/internal/testenv"
)

// Behind a pooler in transaction mode no session is ours: everything that a store
// promises must hold there too.
func TestStoreBehindPgBouncer(t *testing.T) {
	t.Parallel()
	p := private(t, "max_connections = 300")
	addr := startPgBouncer(t, p)
	storetest.Run(t, func(t *testing.T) storetest.Place {
		name := testenv.UniqueName("t")
		admin(t, p.URL, "create database "+name)
		url := fmt.Sprintf("postgres://postgres@%s/%s?sslmode=disable", addr, name)
		s := open(t, Options{URL: url})
		if !s.pooled {
			t.Error("the pooler was not recognised")
		}
		must(t, s.Close())
		return place(t, Options{URL: url})
	})

	// Its sessions are shared: what we set must end with our transaction.
	s := open(t, Options{URL: fmt.Sprintf("postgres://postgres@%s/postgres?sslmode=disable", addr)})
	for range 10 {
		wantStatus(t, s, key("a"), 0)
	}
	must(t, s.try(t.Context(), s.desk, time.Second, func(ctx context.Context, conn *pgx.Conn) error {
		var scan string
		err := conn.QueryRow(ctx, "show enable_seqscan").Scan(&scan)
		if scan != "on" {
			t.Errorf("a session of the pooler: got enable_seqscan %s, want on", scan)
		}
		return err
	}))
}

// startPgBouncer starts a pooler with few server connections in front of p.
func startPgBouncer(t *testing.T, p *testenv.Postgres) (addr string) {
	t.Helper()
	bin := testenv.Program(t, "pgbouncer", "/usr/sbin/pgbouncer")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	addr = l.Addr().String()
	must(t, l.Close())
	_, port, _ := net.SplitHostPort(addr)
	host, serverPort, _ := net.SplitHostPort(p.Addr)

	dir, err := os.MkdirTemp("", "inboxd-pgbouncer-") //nolint:usetesting // another user must get in
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	must(t, os.Chmod(dir, 0o777)) // it runs as another user where we are root
	config := filepath.Join(dir, "pgbouncer.ini")
	must(t, os.WriteFile(config, fmt.Appendf(nil, `[databases]
* = host=%s port=%s user=postgres password=private
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %s
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 3
max_client_conn = 500
max_db_connections = 4
log_connections = 0
log_disconnections = 0
`, host, serverPort, port), 0o644))

	var log strings.Builder
	cmd := exec.Command(bin, config)
	cmd.Stdout, cmd.Stderr = &log, &log
	asNobody(cmd)
	must(t, cmd.Start())
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
		if t.Failed() {
			t.Logf("pgbouncer:\n%s", log.String())
		}
	})
	eventually(t, "pgbouncer accepts connections", 10*time.Second, func() bool {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	return addr
}
