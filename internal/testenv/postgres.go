package testenv

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
)

// The superuser of a private PostgreSQL. It has a password, so that a wrong one
// is refused here as it is in production.
const (
	pgUser     = "postgres"
	pgPassword = "private"
)

// Postgres is a private PostgreSQL server with fsync on. Its methods are not
// safe for concurrent use.
type Postgres struct {
	URL  string // of the database "postgres", as superuser
	Addr string // 127.0.0.1:PORT, for a Proxy
	Log  string // path of the server's log
	Dir  string // everything of this server; removed by Stop

	bin        string
	credential *syscall.Credential // nil where we are not root
	postmaster *child
}

// StartPostgres initialises and starts a server and returns when it accepts
// connections. The caller must Stop it.
func StartPostgres(o Options) (*Postgres, error) {
	bin, err := PostgresBin()
	if err != nil {
		return nil, err
	}
	port := o.Port
	if port == 0 {
		ports, err := freePorts(1)
		if err != nil {
			return nil, err
		}
		port = ports[0]
	}
	dir, err := os.MkdirTemp(o.Dir, "inboxd-postgres-")
	if err != nil {
		return nil, err
	}
	p := &Postgres{
		URL:  fmt.Sprintf("postgres://%s:%s@%s/postgres?sslmode=disable", pgUser, pgPassword, localAddr(port)),
		Addr: localAddr(port),
		Log:  filepath.Join(dir, "postgres.log"),
		Dir:  dir,
		bin:  bin,
	}
	if err := p.setUp(o, port); err != nil {
		return nil, errors.Join(fmt.Errorf("starting PostgreSQL: %w", err), p.Stop())
	}
	return p, nil
}

// PostgresBin returns the directory of the newest installed PostgreSQL server.
func PostgresBin() (string, error) {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if path, err := exec.LookPath("postgres"); err == nil && len(found) == 0 {
		found = []string{path}
	}
	if len(found) == 0 {
		return "", fmt.Errorf("PostgreSQL is %w (Debian, Ubuntu: apt-get install postgresql)", ErrNotInstalled)
	}
	version := func(path string) int {
		n, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path))))
		return n
	}
	newest := slices.MaxFunc(found, func(a, b string) int { return cmp.Compare(version(a), version(b)) })
	return filepath.Dir(newest), nil
}

func (p *Postgres) setUp(o Options, port int) error {
	if err := p.dropRoot(); err != nil {
		return err
	}
	pwfile := filepath.Join(p.Dir, "password")
	if err := os.WriteFile(pwfile, []byte(pgPassword+"\n"), 0o644); err != nil {
		return err
	}
	initdb := p.command("initdb", "--pgdata", p.data(), "--username", pgUser, "--pwfile", pwfile,
		"--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C", "--no-sync")
	if out, err := initdb.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, out)
	}
	conf, err := os.OpenFile(filepath.Join(p.data(), "postgresql.conf"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(conf, `
listen_addresses = '127.0.0.1'
port = %d
unix_socket_directories = ''
max_connections = 200
fsync = on
%s
`, port, o.Config)
	if err := errors.Join(err, conf.Close()); err != nil {
		return err
	}
	return p.start()
}

// dropRoot chooses the user to run as: PostgreSQL refuses to be root.
func (p *Postgres) dropRoot() error {
	if os.Geteuid() != 0 {
		return nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		if u, err = user.Lookup("nobody"); err != nil {
			return fmt.Errorf("finding a user other than root: %w", err)
		}
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return err
	}
	p.credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return os.Chown(p.Dir, int(uid), int(gid))
}

func (p *Postgres) data() string { return filepath.Join(p.Dir, "data") }

func (p *Postgres) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(p.bin, name), args...)
	cmd.Dir = p.Dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: p.credential}
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "PG") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	return cmd
}

func (p *Postgres) start() error {
	var err error
	if p.postmaster, err = startChild(p.command("postgres", "-D", p.data()), p.Log); err != nil {
		return err
	}
	return p.postmaster.awaitReady(p.Log, p.tryConnect)
}

func (p *Postgres) tryConnect() error {
	ctx, cancel := context.WithTimeout(context.Background(), connectTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, p.URL)
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

// Kill ends the server with SIGKILL, all of its processes at once as a power
// cut would, and waits for their end.
func (p *Postgres) Kill() error { return p.postmaster.kill() }

// Restart starts the server again, on the same data and port, and returns when
// it accepts connections. A server that still runs is killed first. The file
// postmaster.pid is the server's own business: removing it while any of its
// processes lives corrupts the data.
func (p *Postgres) Restart() error {
	if err := p.Kill(); err != nil {
		return err
	}
	if err := p.start(); err != nil {
		return fmt.Errorf("restarting PostgreSQL: %w", err)
	}
	return nil
}

// Freeze stops all processes of the server with SIGSTOP: it stays connected
// and answers nothing.
func (p *Postgres) Freeze() error { return p.postmaster.signal(syscall.SIGSTOP) }

// Thaw undoes Freeze.
func (p *Postgres) Thaw() error { return p.postmaster.signal(syscall.SIGCONT) }

// Stop ends the server and removes its directory. It may be called again.
func (p *Postgres) Stop() error {
	return errors.Join(p.postmaster.kill(), os.RemoveAll(p.Dir))
}
