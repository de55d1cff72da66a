package inbox

import (
	"fmt"
	"testing"
	"testing/synctest"
)

// TestAMessageIsParkedBeforeTheBrokerDropsIt: with two deliveries left, and
// without one more request.
func TestAMessageIsParkedBeforeTheBrokerDropsIt(t *testing.T) {
	for _, tc := range []struct {
		limit, count int64
		parked       bool
	}{
		{limit: 0, count: 1000}, // no limit, or not known
		{limit: 20, count: -1},  // a classic queue counts nothing
		{limit: 20, count: 17},
		{limit: 20, count: 18, parked: true},
		{limit: 5, count: 2},
		{limit: 5, count: 3, parked: true},
		{limit: 2, count: 0}, // never at the first delivery
		{limit: 2, count: 1, parked: true},
		{limit: 1, count: 0},
		{limit: 1, count: 1, parked: true},
	} {
		for _, id := range []string{"a", ""} {
			t.Run(fmt.Sprintf("limit %d count %d id %q", tc.limit, tc.count, id), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					m, f := newMemory(), &answers{list: []Answer{ok200}}
					p, d := newProcessor(m, f), delivery(id, "{}")
					p.MissingID = ForwardMissingID
					d.DeliveryLimit, d.DeliveryCount = tc.limit, tc.count
					got, want := p.Process(t.Context(), d), Result{Outcome: Processed}
					if tc.parked {
						want = Result{Outcome: Parked, Reason: DeliveryLimit}
					}
					if got.Outcome != want.Outcome || got.Reason != want.Reason {
						t.Errorf("got %v %v, want %v %v", got.Outcome, got.Reason, want.Outcome, want.Reason)
					}
					if tc.parked && f.requests() > 0 {
						t.Errorf("got %d requests for a message that is parked unseen", f.requests())
					}
				})
			})
		}
	}
}

func TestARecordedMessageIsADuplicateHoweverOftenItWasDelivered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, f := newMemory(), &answers{list: []Answer{ok200}}
		p := newProcessor(m, f)
		p.Process(t.Context(), delivery("a", "{}"))
		d := delivery("a", "{}")
		d.DeliveryLimit, d.DeliveryCount = 5, 5
		if got := p.Process(t.Context(), d); got.Outcome != Duplicate {
			t.Errorf("got %v (%v), want duplicate", got.Outcome, got.Err)
		}
	})
}
