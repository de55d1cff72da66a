package verify

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// work is how long a handler of these tests takes between two of its steps.
const work = 5 * time.Millisecond

// shop is a service with a database that survives its crashes and a memory that
// does not. The fields are what a fault changes.
type shop struct {
	mu      sync.Mutex
	effects map[string]int    // by order: what the view shows
	keys    map[string]string // durable: key to fingerprint
	memory  map[string]bool
	running map[string]*sync.Mutex // one transaction a key, as a unique key makes it
	epoch   int                    // a crash ends the requests of an older one

	handle func(s *shop, r request) int
}

type request struct {
	key, fingerprint, order string
	attempt                 string
	epoch                   int
}

func newShop(handle func(*shop, request) int) *shop {
	return &shop{
		effects: map[string]int{}, keys: map[string]string{}, memory: map[string]bool{},
		running: map[string]*sync.Mutex{}, handle: handle,
	}
}

// commit changes the database at one stroke, unless the process has crashed.
func (s *shop) commit(r request, change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.epoch != s.epoch {
		panic(http.ErrAbortHandler)
	}
	change()
}

// lockKey stands for the wait of an INSERT for a transaction with the same key.
func (s *shop) lockKey(key string) (unlock func()) {
	s.mu.Lock()
	l := s.running[key]
	if l == nil {
		l = new(sync.Mutex)
		s.running[key] = l
	}
	s.mu.Unlock()
	l.Lock()
	return l.Unlock
}

func (s *shop) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	var order struct {
		ID string `json:"order_id"`
	}
	if err := json.Unmarshal(body, &order); err != nil || req.Method != http.MethodPost {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	epoch := s.epoch
	s.mu.Unlock()
	w.WriteHeader(s.handle(s, request{
		key: req.Header.Get("Idempotency-Key"), fingerprint: req.Header.Get("Inbox-Fingerprint"),
		order: order.ID, attempt: req.Header.Get("Inbox-Attempt"), epoch: epoch,
	}))
}

// crash ends all requests at work and empties the memory.
func (s *shop) crash() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.epoch++
	s.memory = map[string]bool{}
}

// The handlers: one that is right, one that is right by another rule, and the
// six faults that a proof must find.
func good(s *shop, r request) int {
	defer s.lockKey(r.key)()
	status := 200
	time.Sleep(work)
	s.commit(r, func() {
		if known, there := s.keys[r.key]; there {
			if known != r.fingerprint {
				status = 422
			}
			return
		}
		s.keys[r.key] = r.fingerprint
		s.effects[r.order]++
	})
	return status
}

func naturallyIdempotent(s *shop, r request) int {
	time.Sleep(work)
	s.commit(r, func() { s.effects[r.order] = 1 })
	return 204
}

func failsFirstAndRemembers(s *shop, r request) int {
	status := good(s, r)
	if status == 200 && r.attempt == "1" {
		return 500
	}
	return status
}

func checkThenInsert(s *shop, r request) int {
	var there bool
	s.commit(r, func() { _, there = s.keys[r.key] })
	if there {
		return 200
	}
	time.Sleep(work)
	s.commit(r, func() { s.keys[r.key] = r.fingerprint; s.effects[r.order]++ })
	return 200
}

func recordBeforeCommit(s *shop, r request) int {
	var there bool
	s.commit(r, func() {
		if _, there = s.keys[r.key]; !there {
			s.keys[r.key] = r.fingerprint
		}
	})
	if there {
		return 200
	}
	time.Sleep(work)
	s.commit(r, func() { s.effects[r.order]++ })
	return 200
}

func keyIgnored(s *shop, r request) int {
	time.Sleep(work)
	s.commit(r, func() { s.effects[r.order]++ })
	return 200
}

func keyInMemory(s *shop, r request) int {
	defer s.lockKey(r.key)()
	var there bool
	s.commit(r, func() { there = s.memory[r.key] })
	if there {
		return 200
	}
	time.Sleep(work)
	s.commit(r, func() { s.effects[r.order]++; s.memory[r.key] = true })
	return 200
}

func failsAfterCommit(s *shop, r request) int {
	time.Sleep(work)
	var there bool
	s.commit(r, func() {
		if _, there = s.keys[r.key]; there {
			return
		}
		s.effects[r.order]++
		if r.attempt != "1" {
			s.keys[r.key] = r.fingerprint
		}
	})
	if r.attempt == "1" {
		return 500
	}
	return 200
}

// notConcurrent keeps the message under way in a variable that all requests
// share.
func notConcurrent() func(*shop, request) int {
	var current request
	return func(s *shop, r request) int {
		defer s.lockKey(r.key)()
		s.commit(r, func() { current = r })
		time.Sleep(work)
		s.commit(r, func() {
			if _, there := s.keys[r.key]; !there {
				s.keys[r.key] = r.fingerprint
				s.effects[current.order]++
			}
		})
		return 200
	}
}

// prove runs all cases against a shop, restarts included.
func prove(t *testing.T, s *shop, change func(*options)) map[string]*Case {
	t.Helper()
	srv := httptest.NewServer(s)
	t.Cleanup(srv.Close)
	views := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		fmt.Fprint(w, s.effects[r.URL.Query().Get("order")])
	}))
	t.Cleanup(views.Close)
	o, err := parse([]string{
		"--body", `{"order_id": "{{id}}", "n": {{n}}}`, "--http", views.URL + "?order={{id}}",
		"--quiet", "30ms", "--wait", "300ms", "--timeout", "5s", srv.URL,
	}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	o.service.run = func(context.Context) error { s.crash(); return nil }
	if change != nil {
		change(o)
	}
	r, err := o.runner(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	cases := make(map[string]*Case)
	if err := r.run(t.Context(), func(c *Case) { cases[c.Name] = c }); err != nil {
		t.Fatalf("run: %v", err)
	}
	return cases
}

func TestGoodHandlersPass(t *testing.T) {
	t.Parallel()
	for name, handle := range map[string]func(*shop, request) int{
		"key in the transaction": good,
		"naturally idempotent":   naturallyIdempotent,
		"fails, but remembers":   failsFirstAndRemembers,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cases := prove(t, newShop(handle), nil)
			if len(cases) != 11 {
				t.Errorf("cases: got %d, want 11", len(cases))
			}
			for _, c := range cases {
				if c.Result == Fail {
					t.Errorf("%s: got %+v, want a pass", c.Name, *c)
				}
			}
		})
	}
}

func TestEachFaultIsFoundByItsCase(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]struct {
		handle func(*shop, request) int
		found  string
		why    string
		remedy string
	}{
		"check, then insert":            {checkThenInsert, nameAtOnce, "effects instead of one", "unique key"},
		"record before commit":          {recordBeforeCommit, nameKill, "no effect at all", "one transaction"},
		"record before commit, at once": {recordBeforeCommit, nameAtOnce, "the effect was not there yet", "only when the change is committed"},
		"key ignored":                   {keyIgnored, nameAgain, "3 effects instead of one", "Idempotency-Key"},
		"key in memory only":            {keyInMemory, nameRestart, "2 effects instead of one", "not in memory"},
		"commits, then fails":           {failsAfterCommit, nameRetry, "answered 500 with its effect committed", "after the commit"},
		"not safe under concurrency":    {notConcurrent(), nameCrowd, "effects instead of one", "side by side"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := prove(t, newShop(f.handle), nil)[f.found]
			if c.Result != Fail || !strings.Contains(c.Why, f.why) || !strings.Contains(c.Remedy, f.remedy) {
				t.Errorf("%s: got %+v, want it to fail with %q and the remedy %q", f.found, *c, f.why, f.remedy)
			}
		})
	}
}

func TestAnswersThatLeadAstrayAreFound(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]struct {
		handle func(*shop, request) int
		found  string
		want   Result
		why    string
	}{
		"answers, then commits": {func(s *shop, r request) int {
			go func() {
				defer func() { _ = recover() }()
				time.Sleep(100 * time.Millisecond)
				good(s, r)
			}()
			return 200
		}, nameOnce, Fail, "the effect was not there yet"},
		"202, then commits": {func(s *shop, r request) int {
			go func() {
				defer func() { _ = recover() }()
				time.Sleep(50 * time.Millisecond)
				good(s, r)
			}()
			return 202
		}, nameOnce, Pass, "safe only in shared mode"},
		"does nothing":       {func(*shop, request) int { return 200 }, nameOnce, Fail, "no effect"},
		"refuses everything": {func(*shop, request) int { return 415 }, nameOnce, Fail, "answered 415"},
		"never answers 2xx":  {func(*shop, request) int { return 503 }, nameRetry, Fail, "not answered 2xx"},
		"409 for a duplicate": {func(s *shop, r request) int {
			s.mu.Lock()
			_, there := s.keys[r.key]
			s.mu.Unlock()
			if there {
				return 409
			}
			return good(s, r)
		}, nameAgain, Fail, "answered 409"},
		"takes any two messages for one": {func(s *shop, r request) int {
			r.key = "one"
			r.fingerprint = ""
			return good(s, r)
		}, nameTwoKeys, Fail, "0 effects together"},
		"another body, another effect": {func(s *shop, r request) int {
			r.key += r.fingerprint
			return good(s, r)
		}, nameOtherBody, Fail, "2 effects instead of one"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop(f.handle)
			if f.found == nameTwoKeys {
				// The first message must pass for the others to be tried.
				var once sync.Once
				s.handle = func(s *shop, r request) int {
					status := -1
					once.Do(func() { status = good(s, r) })
					if status > 0 {
						return status
					}
					return f.handle(s, r)
				}
				s.keys["one"] = ""
			}
			c := prove(t, s, func(o *options) { o.attempts = 3 })[f.found]
			if c.Result != f.want || !strings.Contains(c.Why+c.Note, f.why) {
				t.Errorf("%s: got %+v, want %s with %q", f.found, *c, f.want, f.why)
			}
		})
	}
}

func TestViewsOfTextAndOfOtherUnits(t *testing.T) {
	t.Parallel()
	s := newShop(good)
	views := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		order := r.URL.Query().Get("order")
		switch n := s.effects[order]; {
		case r.URL.Path == "/sum":
			var sum int
			for _, n := range s.effects {
				sum += n
			}
			fmt.Fprintf(w, `{"sum": {"cents": %d}}`, 1999*sum)
		case r.URL.Path == "/list":
			b, _ := json.Marshal(make([]int, n))
			w.Write(b)
		case n == 0:
			http.NotFound(w, r)
		default:
			fmt.Fprintf(w, "order %s was placed %d times", order, n)
		}
	}))
	defer views.Close()
	for _, v := range []struct {
		url, pointer string
	}{{"/order?order={{id}}", ""}, {"/sum", "/sum/cents"}, {"/list?order={{id}}", ""}} {
		for _, h := range []struct {
			handle func(*shop, request) int
			want   Result
		}{{good, Pass}, {keyIgnored, Fail}} {
			s.handle = h.handle
			cases := prove(t, s, func(o *options) { o.http, o.pointer, o.service = views.URL+v.url, v.pointer, service{} })
			if c := cases[nameAgain]; c.Result != h.want {
				t.Errorf("%s: got %+v, want %s", v.url, *c, h.want)
			}
			if c := cases[nameTwoKeys]; c.Result != Pass {
				t.Errorf("%s: got %+v, want a pass", v.url, *c)
			}
		}
	}
}

func TestCommandLine(t *testing.T) {
	t.Parallel()
	s := newShop(good)
	srv := httptest.NewServer(s)
	defer srv.Close()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := "http://" + closed.Addr().String()
	closed.Close()
	sample := filepath.Join(t.TempDir(), "sample.json")
	if err := os.WriteFile(sample, []byte(`{"order_id": "one order"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	const body = `{"order_id": "{{id}}"}`
	view := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		fmt.Fprint(w, s.effects[r.URL.Query().Get("order")])
	}))
	defer view.Close()
	keyedView := view.URL + "?order={{id}}"
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"-h"}, 0, "usage: inboxd verify"},
		{nil, 2, "want one URL"},
		{[]string{"--nonsense"}, 2, "not defined"},
		{[]string{srv.URL}, 2, "want a sample"},
		{[]string{"--body", body, srv.URL}, 2, "want one view"},
		{[]string{"--body", body, "--http", keyedView, "--command", "true", srv.URL}, 2, "want one view"},
		{[]string{"--body", body, "--sql", "postgres://", srv.URL}, 2, "go together"},
		{[]string{"--body", body, "--http", keyedView, "ftp://x"}, 2, "want an http://"},
		{[]string{"--body", body, "--http", keyedView, "--header", "x", srv.URL}, 2, "NAME:VALUE"},
		{[]string{"--message", "/nonexistent", "--http", keyedView, srv.URL}, 2, "no such file"},
		{[]string{"--body", body, "--http", keyedView, nobody}, 2, "refused"},
		{[]string{"--body", body, "--http", nobody, srv.URL}, 2, "--http"},
		{[]string{"--body", body, "--command", "echo several words", srv.URL}, 2, "put {{id}}"},
		{[]string{"--body", body, "--command", "exit 3", srv.URL}, 2, "exit status 3"},
		{[]string{"--body", body, "--http", keyedView, "--quiet", "10ms", srv.URL}, 0, "killed at work, then again  -"},
		{[]string{"--message", sample, "--http", view.URL + "?order=one%20order", "--quiet", "10ms", srv.URL}, 0, "neither {{id}} nor {{n}}"},
		{[]string{"--body", "no json", "--http", keyedView, "--quiet", "10ms", srv.URL}, 1, "FAIL once: the first request was answered 400"},
		{[]string{"--body", body, "--http", keyedView, "--id", "text", "--idempotency-key", "quoted", "--json", "--quiet", "10ms", srv.URL}, 0, `"ok": true`},
	} {
		var out strings.Builder
		code := Main(t.Context(), c.args, &out, &out)
		if code != c.code || !strings.Contains(out.String(), c.want) {
			t.Errorf("verify %q: got exit code %d, want %d with %q in:\n%s", c.args, code, c.code, c.want, out.String())
		}
	}
}

func TestRequestsAreThoseOfTheDaemon(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var seen []*http.Request
	socket := filepath.Join(t.TempDir(), "app.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		seen = append(seen, r)
		mu.Unlock()
		w.WriteHeader(http.StatusEarlyHints) // an informational answer is not the answer
	})}
	go srv.Serve(l)
	defer srv.Close()
	tgt, err := newTarget("http+unix://"+socket+":/messages?x=1", "")
	if err != nil {
		t.Fatal(err)
	}
	tgt.timeout, tgt.consumer, tgt.header = 5*time.Second, "billing", http.Header{"Content-Type": {"text/plain"}}
	m := message{id: "m-1", n: "1", body: []byte("hello")}
	if a := tgt.send(t.Context(), m, 2); a.status != 200 {
		t.Fatalf("answer: got %+v, %v, want 200", a, a.err)
	}
	r := seen[0]
	for name, want := range map[string]string{
		"Idempotency-Key": "m-1", "Inbox-Consumer": "billing", "Inbox-Attempt": "2", "Inbox-Redelivered": "true",
		"Inbox-Fingerprint": "2cf24dba5fb0a30e", "Content-Type": "text/plain",
	} {
		if got := r.Header.Get(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	if got := r.Method + " " + r.URL.String(); got != "POST /messages?x=1" {
		t.Errorf("request: got %s, want POST /messages?x=1", got)
	}
}

func TestMessageIDsAreUUIDsOfVersion7(t *testing.T) {
	t.Parallel()
	tm := newMint("{{id}} {{n}}", idUUIDv7)
	a, b := tm.next(), tm.next()
	if a.id == b.id || a.n == b.n || string(a.body) != a.id+" "+a.n {
		t.Errorf("got %+v and %+v, want two messages that differ", a, b)
	}
	if len(a.id) != 36 || a.id[14] != '7' || !strings.ContainsRune("89ab", rune(a.id[19])) {
		t.Errorf("got %s, want a UUID of version 7", a.id)
	}
	if o := tm.otherBody(a); o.id != a.id || string(o.body) == string(a.body) {
		t.Errorf("other body: got %+v, want the ID of %+v", o, a)
	}
	if o := newMint("fixed", idText).otherBody(message{body: []byte("fixed")}); string(o.body) != "fixed\n" {
		t.Errorf("other body of a fixed sample: got %q", o.body)
	}
}

func TestInterruptEndsTheRun(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		cancel()
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer srv.Close()
	var out strings.Builder
	if code := Main(ctx, []string{"--body", "x", "--command", "echo 0", srv.URL}, &out, &out); code != 2 {
		t.Errorf("exit code: got %d, want 2\n%s", code, out.String())
	}
}
