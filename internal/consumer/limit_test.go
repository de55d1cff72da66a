package consumer

import (
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/inboxd/inboxd/internal/inbox"
)

func TestDeliveryLimit(t *testing.T) {
	declared := func(n any) *Declare {
		return &Declare{Type: "quorum", Arguments: inbox.Table{"x-delivery-limit": n}}
	}
	for name, tc := range map[string]struct {
		limit   int
		declare *Declare
		version string
		want    int64
	}{
		"auto, 3.10":                {AutoDeliveryLimit, nil, "3.10.8", 0},
		"auto, 4.0":                 {AutoDeliveryLimit, nil, "4.0.1", 20},
		"auto, 4.3":                 {AutoDeliveryLimit, nil, "4.3.7+1", 20},
		"auto, no version":          {AutoDeliveryLimit, nil, "", 0},
		"auto, declared":            {AutoDeliveryLimit, declared(int64(5)), "4.0.1", 5},
		"auto, declared unlimited":  {AutoDeliveryLimit, declared(int64(-1)), "4.0.1", 0},
		"auto, declared without":    {AutoDeliveryLimit, &Declare{Type: "quorum"}, "4.0.1", 20},
		"number":                    {7, declared(int64(5)), "4.0.1", 7},
		"off":                       {0, nil, "4.0.1", 0},
		"the zero value, as in off": {version: "4.0.1", want: 0},
	} {
		o := Options{DeliveryLimit: tc.limit, Declare: tc.declare}
		if got := o.deliveryLimit(amqp.Table{"version": tc.version}); got != tc.want {
			t.Errorf("%s: got %d, want %d", name, got, tc.want)
		}
	}
}
