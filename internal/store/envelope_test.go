package store

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
)

func TestEnvelopeKeepsEveryProperty(t *testing.T) {
	t.Parallel()
	for _, want := range []inbox.Message{
		{},
		{
			Exchange: "orders", RoutingKey: "paid.\x00\xff",
			Properties: inbox.Properties{
				ContentType: "a", ContentEncoding: "b", DeliveryMode: 2, Priority: 255,
				CorrelationID: "c\xfe", ReplyTo: "d", Expiration: "e", MessageID: "f\r\n",
				Timestamp: time.Unix(1767225600000, 0).UTC(), // milliseconds taken for seconds
				Type:      "g", UserID: "h", AppID: "i",
			},
		},
	} {
		b, err := MarshalEnvelope(&want)
		if err != nil {
			t.Fatal(err)
		}
		var got inbox.Message
		if err := UnmarshalEnvelope(b, &got); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("through %s:\n got %+v\nwant %+v", b, got, want)
		}
	}
}

func TestIDsSortByAge(t *testing.T) {
	t.Parallel()
	ids := make([]string, 10000)
	for i := range ids {
		ids[i] = NewID()
	}
	if !slices.IsSorted(ids) || len(slices.Compact(ids)) != len(ids) {
		t.Errorf("IDs are not strictly increasing: %v …", ids[:3])
	}
	if got := ids[0]; len(got) != 36 || got[14] != '7' {
		t.Errorf("got %q, want a UUID of version 7", got)
	}
}
