// Package e2e proves the promise of inboxd with the real binary against a real
// RabbitMQ, a real PostgreSQL and real HTTP handlers.
package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/inboxd/inboxd/internal/testenv"
)

// inboxd, built with the tag failpoint: as it is, and with the race detector
// where the tests have it.
var binary, raceBinary string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "inboxd-e2e-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		build := func(name string, flags ...string) string {
			path := filepath.Join(dir, name)
			args := append([]string{"build", "-tags", "failpoint", "-o", path}, flags...)
			out, err := exec.Command("go", append(args, "../../cmd/inboxd")...).CombinedOutput()
			if err != nil {
				fmt.Fprintf(os.Stderr, "building inboxd: %v\n%s", err, out)
				os.Exit(1)
			}
			return path
		}
		binary = build("inboxd")
		raceBinary = binary
		if raceEnabled {
			raceBinary = build("inboxd-race", "-race")
		}
		return m.Run()
	}())
}

// daemon is one inboxd of a test: its configuration, and its process while one
// runs.
type daemon struct {
	t       *testing.T
	dir     string
	config  string
	metrics string // host:port
	admin   string
	log     string // path; appended to by every life
	binary  string

	mu  sync.Mutex
	cmd *exec.Cmd
	end chan error
}

// settings are what a test changes of the default configuration.
type settings struct {
	amqp, queue, handler, store string
	consumer                    string // more keys of the consumer, YAML, indented by 4
	forward                     string // more keys of its forward, YAML, indented by 6
	extra                       string // more top-level keys
	logLevel                    string
	fast                        bool // without the race detector: the test wants load
}

func newDaemon(t *testing.T, s settings) *daemon {
	t.Helper()
	d := &daemon{t: t, dir: t.TempDir(), metrics: testenv.FreeAddr(t), admin: testenv.FreeAddr(t)}
	d.binary = raceBinary
	if s.fast {
		d.binary = binary
	}
	if s.store == "" {
		s.store = "sqlite:" + filepath.Join(d.dir, "inbox.db")
	}
	if s.logLevel == "" {
		s.logLevel = "info"
	}
	d.config = filepath.Join(d.dir, "inboxd.yaml")
	d.log = filepath.Join(d.dir, "inboxd.log")
	d.write(s)
	t.Cleanup(func() {
		d.kill()
		if strings.Contains(d.readLog(), "DATA RACE") {
			t.Error("the race detector found something in the daemon")
		}
		if t.Failed() {
			raw, _ := os.ReadFile(d.log)
			if len(raw) > 8<<10 {
				raw = raw[len(raw)-8<<10:]
			}
			t.Logf("the end of the daemon's log:\n%s", raw)
		}
	})
	return d
}

func (d *daemon) write(s settings) {
	d.t.Helper()
	text := fmt.Sprintf(`broker:
  url: %s
store:
  url: %s
consumers:
  - name: billing
    queue: %s
%s    forward:
      url: %s
%smetrics: {listen: "%s"}
admin: {listen: "%s"}
log: {level: %s}
%s`, s.amqp, s.store, s.queue, s.consumer, s.handler, s.forward, d.metrics, d.admin, s.logLevel, s.extra)
	if err := os.WriteFile(d.config, []byte(text), 0o600); err != nil {
		d.t.Fatal(err)
	}
}

// start runs the daemon with more environment variables, and does not wait for
// anything.
func (d *daemon) start(env ...string) {
	d.t.Helper()
	log, err := os.OpenFile(d.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		d.t.Fatal(err)
	}
	cmd := exec.Command(d.binary, "run", "-c", d.config)
	cmd.Stdout, cmd.Stderr = log, log
	// The race detector would sleep for a second at the end of the process.
	cmd.Env = append(append(os.Environ(), "GORACE=atexit_sleep_ms=0"), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	log.Close()
	end := make(chan error, 1)
	go func() { end <- cmd.Wait(); close(end) }()
	d.mu.Lock()
	d.cmd, d.end = cmd, end
	d.mu.Unlock()
}

func (d *daemon) signal(sig os.Signal) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cmd != nil {
		_ = d.cmd.Process.Signal(sig)
	}
}

// kill ends the process with SIGKILL and waits for its end.
func (d *daemon) kill() {
	d.signal(syscall.SIGKILL)
	d.mu.Lock()
	end := d.end
	d.mu.Unlock()
	if end != nil {
		<-end
	}
}

// wait returns the exit code, failing the test where the process does not end
// within limit.
func (d *daemon) wait(limit time.Duration) int {
	d.t.Helper()
	select {
	case err := <-d.end:
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return exit.ExitCode()
		}
		return 0
	case <-time.After(limit):
		d.t.Fatalf("the daemon is still running after %v", limit)
		return -1
	}
}

// stop ends the daemon with SIGTERM and wants exit code 0.
func (d *daemon) stop() {
	d.t.Helper()
	d.signal(syscall.SIGTERM)
	if code := d.wait(30 * time.Second); code != 0 {
		d.t.Errorf("exit code after SIGTERM: got %d, want 0", code)
	}
}

// cli runs a command of the binary and returns its exit code and output.
func (d *daemon) cli(args ...string) (code int, stdout, stderr string) {
	d.t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.Command(binary, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		d.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// metric returns the sum of all series of a metric whose labels contain every
// one of the given `name="value"` pairs.
func (d *daemon) metric(name string, labels ...string) float64 {
	d.t.Helper()
	resp, err := http.Get("http://" + d.metrics + "/metrics")
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	raw, _ := io.ReadAll(resp.Body)
	var sum float64
	for line := range strings.Lines(string(raw)) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if series != name && !strings.HasPrefix(series, name+"{") {
			continue
		}
		if containsAll(series, labels) {
			v, _ := strconv.ParseFloat(value, 64)
			sum += v
		}
	}
	return sum
}

func (d *daemon) outcome(o string) int {
	return int(d.metric("inboxd_deliveries_total", `outcome="`+o+`"`))
}

// get returns the status of an endpoint of the metrics listener, 0 where
// nothing answers.
func (d *daemon) get(path string) (int, string) {
	resp, err := http.Get("http://" + d.metrics + path)
	if err != nil {
		return 0, ""
	}
	defer resp.Body.Close()
	raw, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(raw)
}

func (d *daemon) awaitConsuming(limit time.Duration) {
	d.t.Helper()
	eventually(d.t, limit, "the daemon consumes", func() bool { c, _ := d.get("/consuming"); return c == 200 })
}

func containsAll(s string, parts []string) bool {
	for _, p := range parts {
		if !strings.Contains(s, p) {
			return false
		}
	}
	return true
}

// eventually polls what until it is true. The poll interval is not a wait that
// anything depends on.
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

// app is a handler of a test: it remembers every request.
type app struct {
	*httptest.Server
	mu       sync.Mutex
	requests map[string]int      // by Idempotency-Key
	bodies   map[string][32]byte // the first body seen
	total    int
	answer   func(w http.ResponseWriter, r *http.Request, key string, body []byte)
}

// newApp starts a handler that answers with answer, or 200 where that is nil.
func newApp(t *testing.T, answer func(w http.ResponseWriter, r *http.Request, key string, body []byte)) *app {
	a := &app{requests: map[string]int{}, bodies: map[string][32]byte{}, answer: answer}
	a.Server = httptest.NewServer(a)
	t.Cleanup(a.Close)
	return a
}

func (a *app) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	key := r.Header.Get("Idempotency-Key")
	a.mu.Lock()
	a.total++
	a.requests[key]++
	if _, ok := a.bodies[key]; !ok {
		a.bodies[key] = sha256.Sum256(body)
	}
	a.mu.Unlock()
	if a.answer != nil {
		a.answer(w, r, key, body)
	}
}

func (a *app) counts() (keys, total int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.requests), a.total
}

func (a *app) seen(key string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.requests[key]
}

// queue declares a durable queue of the test's own and deletes it afterwards.
func queue(t *testing.T, amqpURL, kind string) string {
	t.Helper()
	name := testenv.UniqueName("e2e")
	if err := testenv.DeclareQueue(amqpURL, name, amqp.Table{"x-queue-type": kind}); err != nil {
		t.Fatalf("declaring a queue: %v", err)
	}
	t.Cleanup(func() { _ = testenv.DeleteQueue(amqpURL, name) })
	return name
}

// publish sends persistent messages and waits for every confirm.
func publish(t *testing.T, amqpURL, queue string, messages ...amqp.Publishing) {
	t.Helper()
	conn, err := amqp.Dial(amqpURL)
	if err != nil {
		t.Fatal(err)
	}
	// A broker that does not confirm may not answer the goodbye either.
	defer func() { _ = conn.CloseDeadline(time.Now().Add(5 * time.Second)) }()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	confirms := make([]*amqp.DeferredConfirmation, 0, len(messages))
	for _, m := range messages {
		m.DeliveryMode = amqp.Persistent
		c, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", queue, true, false, m)
		if err != nil {
			t.Fatal(err)
		}
		confirms = append(confirms, c)
	}
	for _, c := range confirms {
		if ok, err := c.WaitContext(ctx); !ok || err != nil {
			t.Fatalf("publish not confirmed: %v, %v", ok, err)
		}
	}
}

// orders makes n messages with the IDs prefix-0 … and one duplicate after each
// every-th (0: none), and returns them with the digest of each body.
func orders(prefix string, n, every int) (all []amqp.Publishing, bodies map[string][32]byte) {
	bodies = make(map[string][32]byte, n)
	for i := range n {
		id := fmt.Sprintf("%s-%d", prefix, i)
		body := fmt.Appendf(nil, `{"order_id":%q,"customer":"c-%d","amount_cents":%d}`, id, i%97, 100+i)
		m := amqp.Publishing{MessageId: id, ContentType: "application/json", Body: body}
		bodies[id] = sha256.Sum256(body)
		all = append(all, m)
		if every > 0 && i%every == 0 {
			all = append(all, m)
		}
	}
	return all, bodies
}

func (d *daemon) readLog() string {
	raw, _ := os.ReadFile(d.log)
	return string(raw)
}

func httpGet(t *testing.T, url string) string {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, _ := io.ReadAll(resp.Body)
	return string(raw)
}

// awaitSettled waits until the queue is empty and the daemon holds nothing: seen
// twice in a row, because between the two a delivery may be on the wire.
func (d *daemon) awaitSettled(amqpURL, queue string, limit time.Duration) {
	d.t.Helper()
	streak := 0
	eventually(d.t, limit, "every delivery is settled", func() bool {
		n, _, err := testenv.QueueState(amqpURL, queue)
		if err != nil || n > 0 || !strings.Contains(httpGet(d.t, "http://"+d.admin+"/api/status"), `"held":0`) {
			streak = 0
			return false
		}
		streak++
		return streak == 3
	})
}
