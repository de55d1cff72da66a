package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/inboxd/inboxd/internal/inbox"
	"github.com/inboxd/inboxd/internal/store"
	"github.com/inboxd/inboxd/internal/testenv"
)

// private starts a server of the test's own, which may be broken.
func private(t *testing.T, config string) *testenv.Postgres {
	t.Helper()
	p, err := testenv.StartPostgres(testenv.Options{Config: config})
	if errors.Is(err, testenv.ErrNotInstalled) && os.Getenv("CI") == "" {
		t.Skip(err)
	}
	must(t, err)
	t.Cleanup(func() { _ = p.Stop() })
	return p
}

// load records new keys and claims recorded ones until stopped, through every
// failure, and keeps what was answered.
type load struct {
	mu       sync.Mutex
	recorded []inbox.Key
	errors   atomic.Int64
	wrong    atomic.Int64
	stop     context.CancelFunc
	wg       sync.WaitGroup
}

func startLoad(t *testing.T, s *Store) *load {
	l := &load{}
	ctx, cancel := context.WithCancel(t.Context())
	l.stop = cancel
	for w := range 16 {
		l.wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				k := key(fmt.Sprintf("w%d-%d", w, i))
				c, err := s.Claim(context.Background(), k, inbox.Fingerprint{})
				if err == nil {
					err = s.Record(context.Background(), c)
				}
				if err != nil {
					l.errors.Add(1)
					continue
				}
				l.mu.Lock()
				l.recorded = append(l.recorded, k)
				l.mu.Unlock()
				// No answer but the right one, whatever is going on.
				if c, err := s.Claim(context.Background(), k, inbox.Fingerprint{}); err == nil && c.Status != inbox.ClaimRecorded {
					l.wrong.Add(1)
				}
			}
		})
	}
	return l
}

func (l *load) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.recorded)
}

// goesOn waits until n more records were answered.
func (l *load) goesOn(t *testing.T, what string, n int) {
	t.Helper()
	from := l.count()
	eventually(t, what, 30*time.Second, func() bool { return l.count() >= from+n })
}

func (l *load) end(t *testing.T, s *Store) {
	t.Helper()
	l.stop()
	l.wg.Wait()
	if n := l.wrong.Load(); n > 0 {
		t.Errorf("%d claims of recorded keys were answered as not recorded", n)
	}
	lost := 0
	for _, k := range l.recorded {
		if c, err := s.Claim(t.Context(), k, inbox.Fingerprint{}); err != nil || c.Status != inbox.ClaimRecorded {
			lost++
		}
	}
	if lost > 0 {
		t.Errorf("lost: got %d of %d answered records, want none", lost, len(l.recorded))
	}
	t.Logf("%d records answered, %d errors", len(l.recorded), l.errors.Load())
}

func TestServerKilledUnderLoadLosesNoRecord(t *testing.T) {
	t.Parallel()
	p := private(t, "")
	s := open(t, Options{URL: p.URL, CallTime: 2 * time.Second})
	l := startLoad(t, s)
	for range 3 {
		l.goesOn(t, "records before the kill", 200)
		must(t, p.Kill())
		must(t, p.Restart())
		l.goesOn(t, "records after the restart, by itself", 100)
	}
	l.end(t, s)
}

func TestFrozenServerIsAnErrorInTime(t *testing.T) {
	t.Parallel()
	p := private(t, "")
	const limit = time.Second
	s := open(t, Options{URL: p.URL, CallTime: limit})
	l := startLoad(t, s)
	l.goesOn(t, "records before the freeze", 100)
	must(t, p.Freeze())
	start := time.Now()
	_, err := s.Claim(t.Context(), key("frozen"), inbox.Fingerprint{})
	for what, err := range map[string]error{"Claim": err, "Healthy": s.Healthy(t.Context())} {
		if err == nil {
			t.Errorf("%s: got no error from a frozen server", what)
		}
	}
	// Waiting in line behind a batch that is stuck as well, then its own limit.
	if took := time.Since(start); took > 5*limit {
		t.Errorf("got the error after %v, want at most %v", took, 5*limit)
	}
	must(t, p.Thaw())
	l.goesOn(t, "records after the thaw, by itself", 100)
	l.end(t, s)
}

func TestCutConnectionsAreReplaced(t *testing.T) {
	t.Parallel()
	p := private(t, "")
	proxy, err := testenv.NewProxy(p.Addr)
	must(t, err)
	t.Cleanup(func() { _ = proxy.Close() })
	s := open(t, Options{URL: strings.Replace(p.URL, p.Addr, proxy.Addr, 1), CallTime: 2 * time.Second})
	l := startLoad(t, s)
	for range 5 {
		l.goesOn(t, "records", 50)
		proxy.Cut()
	}
	l.goesOn(t, "records after the cuts", 50)
	l.end(t, s)
}

// A failover leaves connections on what is a standby now: every write fails there
// for ever, so that the connection must go.
func TestReadOnlySessionsAreLeft(t *testing.T) {
	t.Parallel()
	p := private(t, "")
	s := open(t, Options{URL: p.URL, CallTime: 2 * time.Second})
	must(t, s.Record(t.Context(), inbox.Claim{Key: key("a")}))
	admin(t, p.URL, "alter system set default_transaction_read_only = on")
	admin(t, p.URL, "select pg_reload_conf()")
	eventually(t, "the server is read-only", 5*time.Second, func() bool {
		return s.Record(t.Context(), inbox.Claim{Key: key("b")}) != nil
	})
	_, err := s.Claim(t.Context(), key("b"), inbox.Fingerprint{})
	for what, err := range map[string]error{
		"Claim":   err,
		"Record":  s.Record(t.Context(), inbox.Claim{Key: key("b")}),
		"Healthy": s.Healthy(t.Context()),
	} {
		if err == nil {
			t.Errorf("%s on a read-only server: got no error", what)
		}
	}
	// The session that turns it off must be able to write.
	admin(t, p.URL+"&options=-c%20default_transaction_read_only%3Doff", "alter system reset default_transaction_read_only")
	admin(t, p.URL, "select pg_reload_conf()")
	eventually(t, "records again, by itself", 10*time.Second, func() bool {
		return s.Record(t.Context(), inbox.Claim{Key: key("b")}) == nil
	})
	wantStatus(t, s, key("a"), inbox.ClaimRecorded)
	must(t, s.Healthy(t.Context()))
}

func TestCommitsAreDurableWhateverTheServersDefault(t *testing.T) {
	t.Parallel()
	p := private(t, "synchronous_commit = off\nfsync = off\ndefault_transaction_isolation = 'serializable'\n")
	var out bytes.Buffer
	s, err := Open(t.Context(), Options{URL: p.URL}, slog.New(slog.NewTextHandler(&out, nil)), prometheus.NewRegistry())
	must(t, err)
	defer s.Close()
	for _, want := range []string{"fsync is off", "synchronous_commit is off"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("log: got %s, want it to say %q", out.String(), want)
		}
	}
	must(t, s.try(t.Context(), s.inserts, time.Second, func(ctx context.Context, conn *pgx.Conn) error {
		var sync, isolation string
		if err := conn.QueryRow(ctx, "select current_setting('synchronous_commit'), current_setting('transaction_isolation')").
			Scan(&sync, &isolation); err != nil {
			return err
		}
		if sync != "on" || isolation != "read committed" {
			t.Errorf("session: got synchronous_commit %s, isolation %s, want on, read committed", sync, isolation)
		}
		return nil
	}))
}

func TestPasswordIsReadAtEachDial(t *testing.T) {
	t.Parallel()
	p := private(t, "")
	var password atomic.Pointer[string]
	set := func(s string) { password.Store(&s) }
	o := Options{
		URL:      strings.Replace(p.URL, ":private@", "@", 1),
		Password: func() (string, error) { return *password.Load(), nil },
	}
	set("wrong-secret")
	_, err := Open(t.Context(), o, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if !errors.Is(err, store.ErrSetup) || !strings.Contains(fmt.Sprint(err), "check user and password") {
		t.Errorf("wrong password: got %v, want %v with the remedy", err, store.ErrSetup)
	}
	if strings.Contains(fmt.Sprint(err), "wrong-secret") {
		t.Errorf("the error shows the password: %v", err)
	}
	set("private")
	s := open(t, o)
	admin(t, p.URL, "alter user postgres password 'changed'")
	set("changed")
	admin(t, strings.Replace(p.URL, "private", "changed", 1), "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'inboxd'")
	must(t, s.Record(t.Context(), inbox.Claim{Key: key("a")}))
	if strings.Contains(s.Describe(), "private") || strings.Contains(s.Describe(), "changed") {
		t.Errorf("Describe shows the password: %s", s.Describe())
	}
}

func TestUnreachableServerIsNoSetupError(t *testing.T) {
	t.Parallel()
	_, err := Open(t.Context(), Options{URL: "postgres://user:secret@127.0.0.1:1/db", CallTime: time.Second},
		slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err == nil || errors.Is(err, store.ErrSetup) || strings.Contains(err.Error(), "secret") {
		t.Errorf("got %v, want an error that may pass, without the password", err)
	}
	_, err = Open(t.Context(), Options{URL: "postgres://user:secret@host:port/db"}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if !errors.Is(err, store.ErrSetup) || strings.Contains(err.Error(), "secret") {
		t.Errorf("bad URL: got %v, want %v without the password", err, store.ErrSetup)
	}
}
