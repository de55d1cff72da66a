package sqlite

import (
	"context"
	"database/sql"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/inboxd/inboxd/internal/inbox"
	"github.com/inboxd/inboxd/internal/store"
	"github.com/inboxd/inboxd/internal/store/storetest"
)

func TestStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) storetest.Place { return place(t, t.TempDir()) })
}

func BenchmarkClaimRecord(b *testing.B) {
	storetest.Benchmark(b, func(b *testing.B) storetest.Place { return place(b, b.TempDir()) })
}

func place(t testing.TB, dir string) storetest.Place {
	path := filepath.Join(dir, "inboxd.db")
	var last *Store
	return storetest.Place{
		Open: func(t testing.TB, o storetest.Options) store.Store {
			last = open(t, Options{Path: path, Retention: o.Retention, Consumers: []string{storetest.Consumer}})
			return last
		},
		Age: func(t testing.TB, by time.Duration, keys ...inbox.Key) {
			t.Helper()
			err := last.inWrite(t.Context(), store.OpDesk, func(ctx context.Context, tx *sql.Tx) error {
				for _, key := range keys {
					if err := mustChange(tx.ExecContext(ctx, `update processed set recorded_at = recorded_at - ?3
						where consumer = (select id from consumer where name = ?1) and message_id = ?2`,
						key.Consumer, string(key.ID), by.Milliseconds())); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				t.Fatalf("making records older: %v", err)
			}
		},
	}
}

func open(t testing.TB, o Options) *Store {
	t.Helper()
	s, err := Open(t.Context(), o, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}
