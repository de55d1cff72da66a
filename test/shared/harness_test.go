// Package shared proves the promise of shared mode with the real binary, a real
// RabbitMQ, a real PostgreSQL and a handler process, all of which are killed.
package shared

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/inboxd/inboxd/internal/store/shared"
	"github.com/inboxd/inboxd/internal/testenv"
)

var binary string // inboxd

func TestMain(m *testing.M) {
	if os.Getenv(handlerVar) != "" {
		serveOrders() // this process is the handler of a test
		return
	}
	if binary = os.Getenv("INBOXD_TEST_BINARY"); binary != "" { // a release, say
		os.Exit(m.Run())
	}
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "inboxd-shared-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		binary = filepath.Join(dir, "inboxd")
		out, err := exec.Command("go", "build", "-o", binary, "../../cmd/inboxd").CombinedOutput()
		if err != nil {
			fmt.Fprintf(os.Stderr, "building inboxd: %v\n%s", err, out)
			return 1
		}
		return m.Run()
	}())
}

// process is a command that is killed and started again.
type process struct {
	t    *testing.T
	name string
	args []string
	env  []string
	log  string

	mu  sync.Mutex
	cmd *exec.Cmd
	end chan struct{}
}

func newProcess(t *testing.T, name string, env []string, args ...string) *process {
	t.Helper()
	p := &process{t: t, name: name, args: args, env: env, log: filepath.Join(t.TempDir(), name+".log")}
	t.Cleanup(func() {
		p.kill()
		if raw, _ := os.ReadFile(p.log); t.Failed() {
			t.Logf("the end of the log of %s:\n%s", name, raw[max(0, len(raw)-6<<10):])
		}
	})
	return p
}

func (p *process) start() {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		p.t.Error(err)
		return
	}
	defer log.Close()
	cmd := exec.Command(p.args[0], p.args[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), p.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		p.t.Error(err)
		return
	}
	end := make(chan struct{})
	go func() { _ = cmd.Wait(); close(end) }()
	p.cmd, p.end = cmd, end
}

func (p *process) signal(s os.Signal) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		end := make(chan struct{})
		close(end)
		return end
	}
	_ = p.cmd.Process.Signal(s)
	return p.end
}

func (p *process) kill() { <-p.signal(syscall.SIGKILL) }

// stop ends the process with SIGTERM and returns its exit code.
func (p *process) stop() int {
	p.t.Helper()
	select {
	case <-p.signal(syscall.SIGTERM):
	case <-time.After(40 * time.Second):
		p.t.Fatalf("%s is still running 40s after SIGTERM", p.name)
	}
	return p.cmd.ProcessState.ExitCode()
}

func (p *process) readLog() string {
	raw, _ := os.ReadFile(p.log)
	return string(raw)
}

// daemon is one inboxd.
type daemon struct {
	*process
	admin, metrics string
}

// settings of a daemon; consumer, inbox and forward are more YAML.
type settings struct {
	name                     string
	queue, handler, db       string
	inbox, consumer, forward string
	attempts                 int // max_attempts; default 3
}

func newDaemon(t *testing.T, s settings) *daemon {
	t.Helper()
	if s.name == "" {
		s.name = "inboxd"
	}
	dir := t.TempDir()
	d := &daemon{admin: testenv.FreeAddr(t), metrics: testenv.FreeAddr(t)}
	config := filepath.Join(dir, "inboxd.yaml")
	text := fmt.Sprintf(`broker: {url: "%s"}
store: {url: "sqlite:%s"}
consumers:
  - name: billing
    queue: %s
    retry: {initial: 20ms, max: 200ms, max_attempts: %d, hold: 2m}
    inbox: {url: "%s"%s}
    forward: {url: "%s"%s}
%s
metrics: {listen: "%s"}
admin: {listen: "%s"}
`, testenv.AMQPURL(t), filepath.Join(dir, "inbox.db"), s.queue, cmp.Or(s.attempts, 3), s.db, s.inbox, s.handler, s.forward, s.consumer, d.metrics, d.admin)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	d.process = newProcess(t, s.name, nil, binary, "run", "-c", config)
	return d
}

var client = &http.Client{Timeout: 10 * time.Second}

// status returns the daemon's status, "" where it does not answer.
func (d *daemon) status() string {
	resp, err := client.Get("http://" + d.admin + "/api/status")
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	raw, _ := io.ReadAll(resp.Body)
	return string(raw)
}

// parked returns the reasons of the parked messages.
func (d *daemon) parked() map[string]int {
	d.t.Helper()
	resp, err := client.Get("http://" + d.admin + "/api/parked?limit=1000")
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		d.t.Fatal(err)
	}
	var page struct {
		Messages []struct {
			Reason string `json:"reason"`
		} `json:"messages"`
		Parked []struct {
			Reason string `json:"reason"`
		} `json:"parked"`
	}
	if err := json.Unmarshal(raw, &page); err != nil {
		d.t.Fatalf("%v in %s", err, raw)
	}
	reasons := make(map[string]int)
	for _, m := range append(page.Messages, page.Parked...) {
		reasons[m.Reason]++
	}
	return reasons
}

// awaitSettled waits until nothing is on the queue or held by one of the daemons.
func awaitSettled(t *testing.T, queue string, limit time.Duration, daemons ...*daemon) {
	t.Helper()
	url, streak := testenv.AMQPURL(t), 0
	eventually(t, limit, "every delivery is settled", func() bool {
		n, consumers, err := testenv.QueueState(url, queue)
		ok := err == nil && n == 0 && consumers > 0
		for _, d := range daemons {
			ok = ok && strings.Contains(d.status(), `"held":0`)
		}
		if !ok {
			streak = 0
			return false
		}
		streak++
		return streak == 3
	})
}

func eventually(t *testing.T, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", limit, what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func newQueue(t *testing.T) string {
	t.Helper()
	url, name := testenv.AMQPURL(t), testenv.UniqueName("shared")
	if err := testenv.DeclareQueue(url, name, nil); err != nil {
		t.Fatalf("declaring a queue: %v", err)
	}
	t.Cleanup(func() { _ = testenv.DeleteQueue(url, name) })
	return name
}

// publish sends messages with the given IDs, and waits for every confirm.
func publish(t *testing.T, queue string, ids ...string) {
	t.Helper()
	conn, err := amqp.Dial(testenv.AMQPURL(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	var last *amqp.DeferredConfirmation
	for _, id := range ids {
		last, err = ch.PublishWithDeferredConfirmWithContext(t.Context(), "", queue, true, false, amqp.Publishing{
			MessageId: id, ContentType: "application/json", DeliveryMode: amqp.Persistent,
			Body: fmt.Appendf(nil, `{"order_id":%q,"customer":"Ada","amount_cents":1999}`, id),
		})
		if err != nil {
			t.Fatal(err)
		}
		if len(ids) < 100 {
			last.Wait()
		}
	}
	if last != nil && !last.Wait() {
		t.Fatal("publish was not confirmed")
	}
}

func messageIDs(n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("m-%d", i)
	}
	return ids
}

// orderTables makes the inbox and the orders, as a user would.
func orderTables(t *testing.T, db string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), db)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	inbox, err := shared.Schema(shared.SchemaOptions{})
	if err != nil {
		t.Fatal(err)
	}
	orders, err := os.ReadFile("../../examples/orders.sql")
	if err != nil {
		t.Fatal(err)
	}
	const requests = `create table requests (id text not null, outcome text not null, age interval)`
	for _, sql := range []string{inbox, string(orders), requests} {
		if _, err := conn.PgConn().Exec(t.Context(), sql).ReadAll(); err != nil {
			t.Fatal(err)
		}
	}
	return conn
}

func number(t *testing.T, conn *pgx.Conn, sql string, args ...any) (n int) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), sql, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return n
}

var errDuplicate = errors.New("duplicate")
