package postgres

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/inboxd/inboxd/internal/inbox"
	"github.com/inboxd/inboxd/internal/store"
	"github.com/inboxd/inboxd/internal/store/storetest"
	"github.com/inboxd/inboxd/internal/testenv"
)

func TestStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) storetest.Place { return place(t, Options{URL: testenv.DatabaseURL(t)}) })
}

func BenchmarkClaimRecord(b *testing.B) {
	for name, leases := range map[string]Leases{"auto": LeasesAuto, "always": LeasesAlways} {
		b.Run("leases="+name, func(b *testing.B) {
			storetest.Benchmark(b, func(b *testing.B) storetest.Place {
				return place(b, Options{URL: testenv.DatabaseURL(b), Leases: leases})
			})
		})
	}
}

func place(t testing.TB, o Options) storetest.Place {
	var mu sync.Mutex
	var opened []*Store
	return storetest.Place{
		Replicas: o.Leases != LeasesNever,
		Open: func(t testing.TB, so storetest.Options) store.Store {
			o := o
			o.Retention = so.Retention
			o.Consumers = []string{storetest.Consumer}
			s := open(t, o)
			mu.Lock()
			defer mu.Unlock()
			for _, other := range opened {
				meet(t, other)
			}
			opened = append(opened, s)
			return s
		},
		Age: func(t testing.TB, by time.Duration, keys ...inbox.Key) {
			t.Helper()
			ids := make([]string, len(keys))
			for i, k := range keys {
				ids[i] = string(k.ID)
			}
			admin(t, o.URL, "update inboxd.processed set processed_at = processed_at - $3::interval where consumer = $1 and message_id = any($2)",
				keys[0].Consumer, ids, by)
		},
	}
}

func open(t testing.TB, o Options) *Store {
	t.Helper()
	s, err := Open(context.Background(), o, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func key(id string) inbox.Key {
	return inbox.Key{Consumer: storetest.Consumer, ID: inbox.MessageID(id)}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantStatus(t testing.TB, s *Store, k inbox.Key, want inbox.ClaimStatus) {
	t.Helper()
	c, err := s.Claim(t.Context(), k, inbox.Fingerprint{})
	if err != nil || c.Status != want {
		t.Errorf("Claim(%q): got status %d, %v, want %d", k.ID, c.Status, err, want)
	}
}

func eventually(t testing.TB, what string, within time.Duration, done func() bool) {
	t.Helper()
	end := time.Now().Add(within)
	for !done() {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", within, what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// The plan of the look-up must not depend on how large the table was when it was
// last analysed.
func TestLookUpsProbeTheKey(t *testing.T) {
	t.Parallel()
	s := open(t, Options{URL: testenv.DatabaseURL(t)})
	ids := make([]string, 200)
	for i := range ids {
		ids[i] = fmt.Sprintf("m%d", i)
	}
	check := func(when string) {
		t.Helper()
		for sql, args := range map[string][]any{
			lookUpSQL:     {"c", ids, s.owner},
			lookUpOnlySQL: {"c", ids},
			releaseSQL:    {"c", ids, s.owner},
			inheritSQL:    {"c", ids, s.owner},
			deleteSQL:     {time.Hour, time.Now(), 5000, int64(cleanerLock)},
		} {
			plan := explain(t, s, sql, args...)
			if strings.Contains(plan, "Seq Scan on processed") || strings.Contains(plan, "Seq Scan on lease") ||
				!strings.Contains(plan, "Index") || sql != deleteSQL && !strings.Contains(plan, "(message_id = k") {
				t.Errorf("%s: got plan\n%s\nwant index probes only, for\n%s", when, plan, sql)
			}
		}
	}
	grow := func(from, to int) {
		t.Helper()
		admin(t, s.opts.URL, `insert into inboxd.processed (consumer, message_id)
			select 'c', md5(n::text) from generate_series($1::int, $2::int) n`, from, to)
	}
	check("empty")
	admin(t, s.opts.URL, "analyze inboxd.processed")
	check("empty and analysed")
	grow(1, 20000)
	check("grown since")
	size := 200000
	if v := largeTable(); v > 0 {
		size = v
	}
	grow(20001, size)
	check("large")
	admin(t, s.opts.URL, "analyze inboxd.processed")
	check("large and analysed")
}
