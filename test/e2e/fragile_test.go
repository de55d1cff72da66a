package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/inboxd/inboxd/internal/testenv"
)

// fragileVar makes this test binary the handler of TestAMessageThatKillsTheHandler…:
// a process of its own that really dies.
const fragileVar = "INBOXD_E2E_FRAGILE"

//nolint:gochecknoinits // before the tests begin, and instead of them
func init() {
	if addr := os.Getenv(fragileVar); addr != "" {
		if err := serveFragile(addr); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(1)
	}
}

// serveFragile answers until a message called poison comes. It tells of each
// request on standard output before it does anything else.
func serveFragile(addr string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	return http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.ReadAll(r.Body); err != nil {
			return
		}
		key := r.Header.Get("Idempotency-Key")
		count := r.Header.Get("Amqp-Header-x-delivery-count")
		if count == "" {
			count = "0"
		}
		fmt.Fprintf(os.Stdout, "%s %s %s\n", key, r.Header.Get("Inbox-Attempt"), count)
		if key == "poison" {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		time.Sleep(10 * time.Millisecond) // how long this handler takes
	}))
}

// fragile is that handler under a supervisor that starts it again.
type fragile struct {
	url string

	mu         sync.Mutex
	deaths     int
	attempts   map[string]int // by message: the number of its latest request
	deliveries map[string]int // by message: the broker's count
}

func startFragile(t *testing.T) *fragile {
	t.Helper()
	addr := testenv.FreeAddr(t)
	f := &fragile{url: "http://" + addr + "/", attempts: map[string]int{}, deliveries: map[string]int{}}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	t.Cleanup(func() { stop(); <-ended })
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			f.live(ctx, t, addr)
			select {
			case <-ctx.Done():
			case <-time.After(200 * time.Millisecond): // a supervisor's pause
			}
		}
	}()
	return f
}

// live runs the handler until it dies.
func (f *fragile) live(ctx context.Context, t *testing.T, addr string) {
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), fragileVar+"="+addr)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Errorf("starting the handler: %v", err)
		return
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		f.note(strings.Fields(lines.Text()))
	}
	_ = cmd.Wait()
	if ctx.Err() == nil {
		f.mu.Lock()
		f.deaths++
		f.mu.Unlock()
	}
}

func (f *fragile) note(line []string) {
	if len(line) != 3 {
		return
	}
	attempt, _ := strconv.Atoi(line[1])
	count, _ := strconv.Atoi(line[2])
	f.mu.Lock()
	defer f.mu.Unlock()
	f.attempts[line[0]] = max(f.attempts[line[0]], attempt)
	f.deliveries[line[0]] = max(f.deliveries[line[0]], count)
}
