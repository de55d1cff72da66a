package storetest

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/inboxd/inboxd/internal/inbox"
)

// Benchmark measures Claim and Record, the two calls of every message, at 1, 64
// and 256 callers.
func Benchmark(b *testing.B, fresh func(b *testing.B) Place) {
	for _, callers := range []int{1, 64, 256} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			s := fresh(b).Open(b, Options{})
			var n atomic.Int64
			b.ReportAllocs()
			b.SetParallelism(max(1, callers/2)) // times two processors
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					i := n.Add(1)
					k := key(fmt.Sprintf("%08x-e29b-41d4-a716-%012x", uint32(i*2654435761), i))
					c, err := s.Claim(context.Background(), k, fingerprint(1))
					if err == nil && c.Status == inbox.ClaimNew {
						err = s.Record(context.Background(), c)
					}
					if err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}
