package forward

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/inboxd/inboxd/internal/inbox"
)

func TestHealthKeepsTheGate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var healthy atomic.Bool
		gate := inbox.NewGate()
		lines := &lineCounter{}
		h := newHealth(gate, slog.New(lines), func(context.Context) error {
			if healthy.Load() {
				return nil
			}
			return errors.New("the health URL answers 503")
		})
		if gate.IsOpen() {
			t.Error("got the gate open before the first answer, want it shut")
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); h.run(ctx) }()

		time.Sleep(10 * time.Minute)
		if c, _ := gate.State(); len(c) != 1 || c[0].Hindrance != inbox.HindranceHandler || c[0].Why != "the health URL answers 503" {
			t.Errorf("got closures %v, want the handler's", c)
		}
		healthy.Store(true)
		time.Sleep(1300 * time.Millisecond)
		if !gate.IsOpen() {
			t.Error("got the gate shut after a 2xx, want it open")
		}
		healthy.Store(false) // one failure is no outage
		time.Sleep(1300 * time.Millisecond)
		if !gate.IsOpen() {
			t.Error("got the gate shut after a failure or two, want it open")
		}
		time.Sleep(2700 * time.Millisecond)
		if s, why, _ := h.status(); gate.IsOpen() || s != HealthFailing || why == "" {
			t.Errorf("got gate open %v, health %s (%s) after 4 s of failures; want it shut", gate.IsOpen(), s, why)
		}
		if n := lines.n.Load(); n > 5 {
			t.Errorf("got %d log lines, want one for each change", n)
		}
		cancel()
		<-done
	})
}

func TestHealthURLIsAsked(t *testing.T) {
	t.Parallel()
	var status atomic.Int64
	status.Store(302)
	s := newServer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/health" && r.Method == http.MethodGet {
			w.WriteHeader(int(status.Load()))
		}
	})
	gate := inbox.NewGate()
	f, err := New(Options{ConsumerName: "c", URL: s.URL, HealthURL: s.URL + "/health"}, gate,
		slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	if err := f.ask(t.Context()); err == nil || gate.IsOpen() {
		t.Errorf("302: got %v, gate open %v; want an error, and the gate shut", err, gate.IsOpen())
	}
	status.Store(204)
	if err := f.ask(t.Context()); err != nil || !gate.IsOpen() {
		t.Errorf("204: got %v, gate open %v; want nil, and the gate open", err, gate.IsOpen())
	}
	if s := f.Status(); s.Health != HealthOK || s.Breaker != BreakerClosed || s.HealthSince.IsZero() {
		t.Errorf("got status %+v, want healthy and closed", s)
	}
}

func TestGonePausesTheConsumer(t *testing.T) {
	t.Parallel()
	s := newServer(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusGone) })
	gate := inbox.NewGate()
	var told atomic.Int64
	f, err := New(Options{ConsumerName: "c", URL: s.URL, OnGone: func(why string) {
		if why == "" || gate.IsOpen() {
			t.Errorf("told %q with the gate open %v, want a reason and the gate shut", why, gate.IsOpen())
		}
		told.Add(1)
	}}, gate, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if a := f.Forward(t.Context(), newDelivery("m")); a.Verdict != inbox.Gone {
			t.Errorf("got %s, want gone", a.Verdict)
		}
	}
	if c, _ := gate.State(); len(c) != 1 || c[0].Hindrance != inbox.HindrancePaused || told.Load() != 1 {
		t.Errorf("got closures %v, told %d times; want paused, once", c, told.Load())
	}
}

// The whole breaker on real sockets: the application goes and comes back.
func TestOutageTouchesFewMessagesAndEndsByItself(t *testing.T) {
	t.Parallel()
	path := t.TempDir() + "/app.sock"
	f := newForwarder(t, "http+unix://"+path+":/", func(o *Options) { o.Breaker = BreakerOptions{}; o.Concurrency = 4 })
	answers := make(chan inbox.Answer, 50)
	for i := range 50 {
		go func() {
			d := newDelivery(strconv.Itoa(i))
			for {
				if a := f.Forward(context.Background(), d); a.Verdict != inbox.Unreachable {
					answers <- a
					return
				}
			}
		}()
	}
	eventually(t, func() bool { return f.Status().Breaker == BreakerOpen })
	unreachable := testutil.ToFloat64(f.metrics.requests[inbox.Unreachable])
	if unreachable > 8 {
		t.Errorf("%v requests found nobody, want no more than a few", unreachable)
	}
	var requests atomic.Int64
	serveUnix(t, path, func(http.ResponseWriter, *http.Request) { requests.Add(1) })
	start := time.Now()
	for range 50 {
		if a := <-answers; a.Verdict != inbox.Done {
			t.Errorf("got %s (%v), want done", a.Verdict, a.Err)
		}
	}
	if took := time.Since(start); took > 4*time.Second || requests.Load() != 50 {
		t.Errorf("took %v and %d requests, want less than 2s and 50", took, requests.Load())
	}
	if s := f.Status(); s.Breaker != BreakerClosed || s.Reason != "" {
		t.Errorf("got breaker %s (%s), want closed", s.Breaker, s.Reason)
	}
}

func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it did not come to that within 10 s")
		}
	}
}

func TestGuardNamesTheLikelyCause(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status int
		body   string
		own    string // content type of the messages
		want   string
	}{
		"Django host check": {400, "<h1>DisallowedHost at /</h1>Invalid HTTP_HOST header: &#x27;app:8080&#x27;.", "application/json", "ALLOWED_HOSTS"},
		"Django in production": {400, "\n<!doctype html>\n<html lang=\"en\"><head><title>Bad Request (400)</title></head>" +
			"<body>\n  <h1>Bad Request (400)</h1><p></p>\n</body></html>", "application/json", "ALLOWED_HOSTS"},
		"FastAPI":     {422, `{"detail":[{"type":"model_attributes_type","loc":["body"]}]}`, "", "forward.content_type"},
		"Express":     {400, "", "", "forward.content_type"},
		"Spring":      {415, `{"status":415,"error":"Unsupported Media Type"}`, "", "forward.content_type"},
		"415 of json": {415, "", "application/json", "content type"},
		"Rails CSRF":  {422, "The change you wanted was rejected.", "application/json", "CSRF"},
		"TLS port":    {400, "Client sent an HTTP request to an HTTPS server.\n", "application/json", "https"},
		"413":         {413, "", "application/json", "max_body"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t, func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(c.status)
				io.WriteString(w, c.body)
			})
			f := newForwarder(t, s.URL, func(o *Options) { o.Breaker = BreakerOptions{} })
			var last inbox.Answer
			for i := range 10 {
				d := newDelivery(strconv.Itoa(i))
				d.Properties.ContentType = c.own
				last = f.Forward(t.Context(), d)
				want := inbox.Refused
				if i == 9 {
					want = inbox.Misconfigured
				}
				if last.Verdict != want {
					t.Errorf("message %d: got %s, want %s", i, last.Verdict, want)
				}
			}
			if got := last.Err.Error(); !strings.Contains(got, c.want) {
				t.Errorf("got %q, want it to name %q", got, c.want)
			}
			if s := f.Status(); s.Breaker != BreakerOpen || !strings.Contains(s.Reason, c.want) {
				t.Errorf("got breaker %s (%s), want it open for %q", s.Breaker, s.Reason, c.want)
			}
		})
	}
}

func TestWrongSetUpsAreNamed(t *testing.T) {
	t.Parallel()
	s := newServer(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", r.Header.Get("Amqp-Type"))
		status, _ := strconv.Atoi(r.Header.Get("Amqp-Message-Id"))
		w.WriteHeader(status)
		io.WriteString(w, r.Header.Get("Amqp-App-Id"))
	})
	f := newForwarder(t, s.URL+"/messages", nil)
	for _, c := range []struct {
		status               int
		location, body, want string
	}{
		{401, "", "", "token_file"},
		{403, "", "", "token_file"},
		{403, "", "CSRF verification failed.", "CSRF"},
		{403, "", "Blocked hosts: app", "config.hosts"},
		{404, "", "", "path"},
		{405, "", "", "POST"},
		{431, "", "", "16 KiB"},
		{301, "/messages/", "", "slash"},
		{308, "https://h/messages", "", "https"},
		{302, "/login", "", "final address"},
		{302, "", "", "final"},
	} {
		d := newDelivery("m")
		d.Properties.MessageID, d.Properties.Type, d.Properties.AppID = strconv.Itoa(c.status), c.location, c.body
		a := f.Forward(t.Context(), d)
		if a.Verdict != inbox.Misconfigured || !strings.Contains(a.Err.Error(), c.want) {
			t.Errorf("status %d %s%s: got %s (%v), want it to name %q", c.status, c.location, c.body, a.Verdict, a.Err, c.want)
		}
	}
}

func TestRetryAfterIsTheLeastWait(t *testing.T) {
	t.Parallel()
	s := newServer(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "7")
		status, _ := strconv.Atoi(r.Header.Get("Amqp-Message-Id"))
		w.WriteHeader(status)
	})
	f := newForwarder(t, s.URL, func(o *Options) { o.Breaker = BreakerOptions{} })
	for _, status := range []int{200, 409, 500, 502, 503} {
		d := newDelivery("m")
		d.Properties.MessageID = strconv.Itoa(status)
		want := 7 * time.Second
		if status == 200 {
			want = 0
		}
		if a := f.Forward(t.Context(), d); a.RetryAfter != want {
			t.Errorf("status %d: got %v, want %v", status, a.RetryAfter, want)
		}
	}
	if s := f.Status(); s.Breaker != BreakerOpen {
		t.Errorf("got breaker %s after 503 with Retry-After, want open", s.Breaker)
	}
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	s := newServer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Amqp-Message-Id") != "" {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	reg := prometheus.NewRegistry()
	var fs []*Forwarder
	for _, name := range []string{"a", "b"} { // two consumers of one daemon
		f, err := New(Options{ConsumerName: name, URL: s.URL}, inbox.NewGate(), slog.New(slog.DiscardHandler), reg)
		if err != nil {
			t.Fatal(err)
		}
		fs = append(fs, f)
	}
	if _, err := New(Options{ConsumerName: "a", URL: s.URL}, inbox.NewGate(), slog.New(slog.DiscardHandler), reg); err == nil {
		t.Error("got no error for a second consumer of the same name")
	}
	bad := newDelivery("m")
	bad.Properties.MessageID = "x"
	fs[0].Forward(t.Context(), newDelivery("m"))
	fs[0].Forward(t.Context(), newDelivery("n"))
	fs[0].Forward(t.Context(), bad)
	want := `
# HELP inboxd_breaker_open 1 while the breaker lets no request go.
# TYPE inboxd_breaker_open gauge
inboxd_breaker_open{consumer="a"} 0
inboxd_breaker_open{consumer="b"} 0
# HELP inboxd_forward_requests_total Requests to the application by what came of them.
# TYPE inboxd_forward_requests_total counter
`
	for _, name := range []string{"a", "b"} {
		for _, v := range inbox.Verdicts[1:] {
			n := 0
			if name == "a" && v == inbox.Done {
				n = 2
			}
			if name == "a" && v == inbox.Failed {
				n = 1
			}
			want += `inboxd_forward_requests_total{consumer="` + name + `",result="` + v.String() + `"} ` + strconv.Itoa(n) + "\n"
		}
	}
	want += `
# HELP inboxd_in_flight Requests in flight.
# TYPE inboxd_in_flight gauge
inboxd_in_flight{consumer="a"} 0
inboxd_in_flight{consumer="b"} 0
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want),
		"inboxd_breaker_open", "inboxd_forward_requests_total", "inboxd_in_flight"); err != nil {
		t.Error(err)
	}
}

func TestAURLThatIsNoneShowsNoPassword(t *testing.T) {
	t.Parallel()
	for _, u := range []string{"http://user:secret/1@host/", "http://user:secret%zz@host/", "http://user:secret#1@host/", "http://user:secret 1@host/"} {
		if _, err := parseTarget(u); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: got %v, want an error without the password", u, err)
		}
	}
}

func TestOptionsReportEveryMistake(t *testing.T) {
	t.Parallel()
	_, err := New(Options{
		ConsumerName: "a\nb", URL: "ftp://user:secret@x", HealthURL: "x", Timeout: -1, Concurrency: -1, IdempotencyKey: "both",
		ContentType: "a\r\nb", TokenFile: t.TempDir() + "/none", TLS: TLSFiles{CAFile: t.TempDir() + "/none", CertFile: "x"},
	}, inbox.NewGate(), slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err == nil {
		t.Fatal("got no error")
	}
	for _, want := range []string{"consumer name", "url:", "health_url", "timeout", "concurrency", "idempotency_key", "content_type", "token_file", "tls", "ca_file"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("got %q, want it to name %s", err, want)
		}
	}
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("the error shows the password: %v", err)
	}
}
