package forward

import (
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
)

func benchDelivery() *inbox.Delivery {
	d := newDelivery("6f1c2f4e-7f0e-4f43-9e5f-0f6f2c7c1a11")
	d.Exchange, d.RoutingKey = "orders", "orders.paid"
	d.Properties.MessageID = string(d.ID)
	d.Properties.Timestamp = time.Unix(1_700_000_000, 0)
	d.Fingerprint = inbox.Fingerprint{1, 2, 3}
	d.Body = make([]byte, 1024)
	return d
}

func BenchmarkFields(b *testing.B) {
	for name, table := range map[string]inbox.Table{
		"no headers":    nil,
		"three headers": {"tenant": "acme", "x-retries": int32(2), "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
	} {
		b.Run(name, func(b *testing.B) {
			o := Options{ConsumerName: "billing"}
			o.setDefaults()
			m, d := newMapper(&o), benchDelivery()
			d.Headers = table
			b.ReportAllocs()
			for b.Loop() {
				m.fields(d)
			}
		})
	}
}

func BenchmarkForward(b *testing.B) {
	f := newForwarder(b, newServer(b, func(_ http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) }).URL, nil)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if a := f.Forward(b.Context(), benchDelivery()); a.Verdict != inbox.Done {
				b.Error(a.Verdict, a.Err)
			}
		}
	})
}
