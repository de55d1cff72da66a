package shared

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/inboxd/inboxd/internal/inbox"
	"github.com/inboxd/inboxd/internal/testenv"
)

// BenchmarkClaim is what the look-ups of a message cost: one caller, and as many
// as requests are in flight in a busy daemon.
func BenchmarkClaim(b *testing.B) {
	url := testenv.DatabaseURL(b)
	conn, err := pgx.Connect(b.Context(), url)
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close(context.Background())
	ddl, err := Schema(SchemaOptions{})
	if err != nil {
		b.Fatal(err)
	}
	const rows = 100_000
	for _, sql := range []string{ddl, fmt.Sprintf(`insert into inbox select 'billing', 'm' || n from generate_series(1, %d) n`, rows)} {
		if _, err := conn.PgConn().Exec(b.Context(), sql).ReadAll(); err != nil {
			b.Fatal(err)
		}
	}
	l, err := Open(b.Context(), Options{URL: url, Consumer: "billing"}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	for _, callers := range []int{1, 32} { // times GOMAXPROCS
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			var n atomic.Int64
			b.SetParallelism(callers)
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					key := inbox.Key{Consumer: "billing", ID: inbox.MessageID(fmt.Sprintf("m%d", n.Add(7919)%(2*rows)))}
					if _, err := l.Claim(context.Background(), key, inbox.Fingerprint{}); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}
