package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/inboxd/inboxd/internal/admin/admintest"
	"github.com/inboxd/inboxd/internal/inbox"
)

func (d *desk) lastDeed(t *testing.T) inbox.AuditEntry {
	t.Helper()
	d.store.Mu.Lock()
	defer d.store.Mu.Unlock()
	if len(d.store.Deeds) == 0 {
		t.Fatal("no deed in the audit table, want one")
	}
	return d.store.Deeds[len(d.store.Deeds)-1]
}

// desk is an Admin over a fake store, with a server in front.
type desk struct {
	*Admin
	store *admintest.Store
	url   string
	log   *strings.Builder

	mu     sync.Mutex
	paused map[string]string
	drains int
}

var someTime = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// open starts the endpoints with two consumers, billing and mail, of which the
// second does not consume.
func open(t *testing.T, change ...func(*Options)) *desk {
	t.Helper()
	d := &desk{store: admintest.NewStore(), paused: map[string]string{}}
	d.log = &strings.Builder{}
	o := Options{
		Version: "1.2.3", Log: slog.New(slog.NewTextHandler(&lockedWriter{w: d.log}, nil)),
		Consumers: func() []ConsumerStatus { return someConsumers() },
		Store:     func() StoreStatus { return StoreStatus{Kind: "sqlite", OK: true, Retention: "168h0m0s"} },
		Desk:      d.store, Parker: d.store,
		Pause: func(_ context.Context, name, why string) error {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.paused[name] = why
			return nil
		},
		Resume: func(_ context.Context, name string) error {
			d.mu.Lock()
			defer d.mu.Unlock()
			delete(d.paused, name)
			return nil
		},
		Drain: func(context.Context) error {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.drains++
			return nil
		},
	}
	for _, c := range change {
		c(&o)
	}
	a, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	a.jobs.tick = 5 * time.Millisecond
	d.Admin = a
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error)
	a.jobs.start(ctx) // Run does so too, but later than the first request
	go func() { ran <- a.Run(ctx) }()
	srv := httptest.NewServer(a.Handler())
	d.url = srv.URL
	t.Cleanup(func() {
		srv.Close()
		cancel()
		if err := <-ran; err != nil {
			t.Errorf("Run: got %v, want nil", err)
		}
	})
	return d
}

type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}

func someConsumers() []ConsumerStatus {
	return []ConsumerStatus{
		{
			Name: "billing", Queue: "orders.paid", Consuming: true,
			Session: SessionStatus{State: SessionConsuming, Since: someTime}, Breaker: BreakerStatus{State: "closed"},
			InFlight: 3, Held: 7, OldestSeconds: 1.5, Counters: Counters{Processed: 900, Duplicate: 100, Parked: 2, Requests: 905},
		},
		{
			Name: "mail", Queue: "orders.mail",
			Hindrances: []inbox.Closure{{Hindrance: inbox.HindranceHandler, Why: "the health URL answers 503", Since: someTime}},
			Session:    SessionStatus{State: SessionIdle, Since: someTime}, Breaker: BreakerStatus{State: "open", Why: "connection refused", Since: someTime},
		},
	}
}

// park stores n parked messages of billing.
func (d *desk) park(t *testing.T, n int) (ids []string) {
	t.Helper()
	for i := range n {
		m := parkedMessage(fmt.Sprintf("order-%d", i), `{"n":`+fmt.Sprint(i)+`}`)
		if err := d.store.Park(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, m.ID)
	}
	return ids
}

func parkedMessage(id, body string) *inbox.ParkedMessage {
	return &inbox.ParkedMessage{
		Consumer: "billing", MessageID: inbox.MessageID(id), Fingerprint: inbox.Fingerprint{1, 2, 3, 4, 5, 6, 7, 8},
		Reason: inbox.HandlerReject, State: inbox.StateParked, Attempts: 1, Requests: 2, Slow: 1, LastStatus: 422,
		Answer: []byte(`{"error":"no such order"}`), Error: "the handler answered 422", Queue: "orders.paid",
		FirstReceived: someTime, LastAttempt: someTime.Add(time.Second), ParkedAt: someTime.Add(2 * time.Second),
		Message: inbox.Message{
			Exchange: "orders", RoutingKey: "paid",
			Properties: inbox.Properties{ContentType: "application/json", DeliveryMode: 2, MessageID: id, Timestamp: someTime},
			Headers:    inbox.Table{"tenant": "acme", "n": int64(7), "raw": []byte{0, 1}},
			Body:       []byte(body),
		},
	}
}

// answer is what a request got.
type answer struct {
	status int
	header http.Header
	body   string
}

// send sends one request; header pairs follow the body.
func (d *desk) send(t *testing.T, method, path, body string, header ...string) answer {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, d.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		if header[i] == "Host" {
			r.Host = header[i+1]
			continue
		}
		r.Header.Set(header[i], header[i+1])
	}
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{res.StatusCode, res.Header, string(b)}
}

func (d *desk) want(t *testing.T, status int, method, path, body string, header ...string) answer {
	t.Helper()
	a := d.send(t, method, path, body, header...)
	if a.status != status {
		t.Fatalf("%s %s: got %d %s, want %d", method, path, a.status, a.body, status)
	}
	return a
}

func withToken(t *testing.T, lines string) func(*Options) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	return func(o *Options) { o.TokenFile = file }
}

var errStore = errors.New("the disk is full")
