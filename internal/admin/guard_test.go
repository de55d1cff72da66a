package admin

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

func TestHostOfAForeignNameIsRefused(t *testing.T) {
	t.Parallel()
	d := open(t, func(o *Options) { o.Hosts = []string{"inboxd.internal"} })
	for host, want := range map[string]int{
		"127.0.0.1": 200, "127.0.0.1:9321": 200, "[::1]:9321": 200, "localhost:9321": 200, "LOCALHOST": 200, "localhost.": 200,
		"inboxd.internal:9321": 200, "evil.example": 403, "127.0.0.1.evil.example:9321": 403, "localhost.evil.example": 403,
	} {
		if got := d.send(t, "GET", "/api/status", "", "Host", host); got.status != want {
			t.Errorf("Host %s: got %d, want %d", host, got.status, want)
		}
	}
}

func TestForeignOriginsMayNotAct(t *testing.T) {
	t.Parallel()
	d := open(t)
	ids := d.park(t, 20)
	for i, h := range [][]string{
		{"Origin", "https://evil.example"},
		{"Origin", "null"},
		{"Sec-Fetch-Site", "cross-site"},
		{"Sec-Fetch-Site", "same-site"},
		{"Sec-Fetch-Site", "cross-site", "Origin", d.url},
	} {
		for _, path := range []string{"/api/parked/" + ids[i] + "/discard", "/parked/" + ids[i] + "/discard", "/drain"} {
			if a := d.send(t, "POST", path, "", h...); a.status != 403 {
				t.Errorf("%v %s: got %d, want 403", h, path, a.status)
			}
		}
	}
	if d.store.Count() != 20 || d.drains != 0 {
		t.Errorf("got %d messages and %d drains, want 20 and none", d.store.Count(), d.drains)
	}
	d.want(t, 200, "POST", "/api/parked/"+ids[0]+"/discard", "", "Origin", d.url)
	d.want(t, 200, "POST", "/api/parked/"+ids[1]+"/discard", "", "Sec-Fetch-Site", "same-origin")
}

func TestTokenIsNeededForEveryRoute(t *testing.T) {
	t.Parallel()
	d := open(t, withToken(t, "secret\nann other\n"))
	for _, pattern := range d.routes {
		method, path, _ := strings.Cut(pattern, " ")
		if !strings.HasPrefix(path, "/api/") && path != "/drain" {
			continue // the page's routes have a test of their own
		}
		path = fillPath(path, "1")
		for _, h := range []string{"", "Bearer", "Bearer wrong", "Bearer secret2", "Basic secret", "Bearer #"} {
			a := d.send(t, method, path, "", "Authorization", h)
			if a.status != 401 || a.header.Get("WWW-Authenticate") == "" {
				t.Errorf("%s with %q: got %d, want 401", pattern, h, a.status)
			}
			if strings.Contains(a.body, "secret") && !strings.Contains(a.body, "token_file") {
				t.Errorf("%s: the answer tells the token: %s", pattern, a.body)
			}
		}
	}
	if n := d.store.Changes(); n != 0 || d.drains != 0 {
		t.Errorf("got %d changes and %d drains, want none", n, d.drains)
	}
	d.want(t, 200, "GET", "/api/status", "", "Authorization", "Bearer secret")
	d.want(t, 200, "GET", "/api/status", "", "Authorization", "bearer other")
	// A name other than an address is no danger to who has the token.
	d.want(t, 200, "GET", "/api/status", "", "Authorization", "Bearer secret", "Host", "inboxd.svc:9321")
	if strings.Contains(d.log.String(), "secret") {
		t.Errorf("the log tells the token: %s", d.log)
	}
}

func TestTokenFileIsReadAgain(t *testing.T) {
	t.Parallel()
	d := open(t, withToken(t, "old\n"))
	d.want(t, 200, "GET", "/api/status", "", "Authorization", "Bearer old")
	write := func(s string) {
		if err := os.WriteFile(d.TokenFile, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("new\n")
	d.want(t, 401, "GET", "/api/status", "", "Authorization", "Bearer old")
	d.want(t, 200, "GET", "/api/status", "", "Authorization", "Bearer new")
	write("# nothing yet\n\n")
	d.want(t, 503, "GET", "/api/status", "", "Authorization", "Bearer new")
	if err := os.Remove(d.TokenFile); err != nil {
		t.Fatal(err)
	}
	a := d.want(t, 503, "GET", "/api/status", "", "Authorization", "Bearer new")
	if strings.Contains(a.body, d.TokenFile) {
		t.Errorf("the answer tells a path of the host: %s", a.body)
	}
}

// fillPath puts value in the place of every wildcard of a pattern.
func fillPath(pattern, value string) string {
	parts := strings.Split(strings.TrimSuffix(pattern, "{$}"), "/")
	for i, p := range parts {
		switch {
		case p == "{consumer}" || p == "{name}":
			parts[i] = "billing"
		case strings.HasPrefix(p, "{"):
			parts[i] = value
		}
	}
	return strings.Join(parts, "/")
}

func TestGETsNeverMutate(t *testing.T) {
	t.Parallel()
	d := open(t)
	id := d.park(t, 3)[0]
	d.want(t, 202, "POST", "/api/parked/replay?reason=mismatch", "") // a run to look at
	before := d.store.Changes()
	walked := 0
	for _, pattern := range d.routes {
		_, path, _ := strings.Cut(pattern, " ")
		for _, method := range []string{"GET", "HEAD"} {
			for _, q := range []string{"", "?all=true&consumer=billing&action=discard&raw=x&why=x&_method=POST", "?id=order-0&consumer=billing"} {
				a := d.send(t, method, fillPath(path, id)+q, "", "X-HTTP-Method-Override", "POST")
				if a.status >= 500 {
					t.Errorf("%s %s%s: got %d %s, want no server error", method, path, q, a.status, a.body)
				}
				walked++
			}
		}
	}
	if walked < 100 {
		t.Fatalf("got %d requests, want every route walked", walked)
	}
	waitFor(t, "the run to end", func() bool { return d.jobs.list()[0].State == JobDone })
	// An export reads, but who took the messages away is worth an audit line;
	// so is the end of the run.
	for _, e := range d.store.Deeds[1:] {
		if e.Action != actionExport && e.Action != "replay-by-filter-done" {
			t.Errorf("got the deed %+v, want none", e)
		}
	}
	if got, want := d.store.Changes()-before, len(d.store.Deeds)-1; got > want || d.drains != 0 || len(d.paused) != 0 {
		t.Errorf("got %d changes, %d drains, %v paused, want none but the %d audit lines", got, d.drains, d.paused, want)
	}
}

func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); {
		if time.Now().After(end) {
			t.Fatalf("waited 10s for %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func TestEveryAnswerHasTheSecurityHeaders(t *testing.T) {
	t.Parallel()
	d := open(t)
	for _, path := range []string{"/", "/api/status", "/api/nothing", "/parked", "/static/style.css", "/nothing"} {
		a := d.send(t, "GET", path, "")
		for name, want := range map[string]string{
			"Content-Security-Policy": contentPolicy, "X-Content-Type-Options": "nosniff",
			"Referrer-Policy": "no-referrer", "X-Frame-Options": "DENY",
		} {
			if got := a.header.Get(name); got != want {
				t.Errorf("%s: %s: got %q, want %q", path, name, got, want)
			}
		}
		if a.header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s: another origin may read it", path)
		}
	}
}

func TestLargeBodiesAreRefused(t *testing.T) {
	t.Parallel()
	d := open(t)
	id := d.park(t, 1)[0]
	big := "csrf=x&why=" + strings.Repeat("a", smallBody+1)
	if a := d.send(t, "POST", "/parked/"+id+"/discard", big, "Content-Type", "application/x-www-form-urlencoded"); a.status != 413 {
		t.Errorf("got %d, want 413", a.status)
	}
	if d.store.Count() != 1 {
		t.Error("the message was discarded, want it kept")
	}
}

func TestServeEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	arrived, served := make(chan struct{}), make(chan error)
	h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(arrived)
		<-ctx.Done()
		_, _ = io.WriteString(w, "finished")
	})
	go func() { served <- Serve(ctx, ln, h, 5*time.Second, slog.New(slog.DiscardHandler)) }()
	go func() { <-arrived; cancel() }()
	res, err := http.Get("http://" + ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if b, _ := io.ReadAll(res.Body); string(b) != "finished" {
		t.Errorf("got %q, want the request to finish", b)
	}
	if err := <-served; err != nil {
		t.Errorf("got %v, want nil", err)
	}
}
