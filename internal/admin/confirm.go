package admin

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
)

// confirmation asks before a verb that is hard to undo, and for its reason.
type confirmation struct {
	Heading, Text, Button string
	Danger                bool
	Target                string // where the form goes
	Back                  string
	Fields                [][2]string // shown
	Hidden                url.Values
	Rate                  int // asked for where not 0
}

func (a *Admin) confirm(w http.ResponseWriter, r *http.Request, c confirmation) error {
	return a.show(w, r, http.StatusOK, "confirm", view{Title: c.Heading, Active: "parked", Parked: -1, Data: c})
}

func (a *Admin) viewConfirmFilter(w http.ResponseWriter, r *http.Request) error {
	q := filterOf(r.URL.Query())
	f, err := parseFilter(q)
	if err != nil {
		return err
	}
	action := r.URL.Query().Get("action")
	if action != actionReplay && action != actionDiscard {
		return badRequest("action: %q is neither replay nor discard", cut(action, 20))
	}
	// What is confirmed is what is there now, not what comes meanwhile.
	if f.Before.IsZero() {
		f.Before = time.Now().UTC().Truncate(time.Second).Add(time.Second)
	}
	if action == actionReplay && f.State == "" {
		f.State = inbox.StateParked
	}
	n, more, err := a.countUpTo(r.Context(), f, 10_000)
	if err != nil {
		return err
	}
	count := countOf(n, "message")
	if more {
		count = "more than " + count
	}
	hidden := filterQuery(f)
	hidden.Set("all", "true")
	c := confirmation{
		Target: "/parked/" + action, Back: "/parked?" + q.Encode(), Hidden: hidden, Rate: defaultRate, Danger: action == actionDiscard,
		Fields: [][2]string{{"Messages", count}, {"Selected by", describeFilter(f)}},
	}
	if action == actionDiscard {
		c.Heading, c.Button = "Discard "+count+"?", "Discard "+count
		c.Text = "They are deleted for good. Export them first if you may need them."
	} else {
		c.Heading, c.Button = "Replay "+count+"?", "Replay "+count
		c.Text = "Each goes the same way as any message again, with the same Idempotency-Key and a fresh set of attempts. What is recorded already is not forwarded again."
	}
	return a.confirm(w, r, c)
}

// countUpTo counts what f selects, and stops at a limit.
func (a *Admin) countUpTo(ctx context.Context, f inbox.ParkedFilter, limit int) (n int, more bool, err error) {
	after := ""
	for {
		ms, err := a.Desk.ListParked(ctx, f, after, maxLimit)
		if err != nil {
			return n, false, err
		}
		n += len(ms)
		if len(ms) < maxLimit {
			return n, false, nil
		}
		if n >= limit {
			return n, true, nil
		}
		after = ms[len(ms)-1].ID
	}
}

func (a *Admin) viewConfirmDiscard(w http.ResponseWriter, r *http.Request) error {
	m, err := a.parkedMessage(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	here := "/parked/" + url.PathEscape(m.ID)
	return a.confirm(w, r, confirmation{
		Heading: "Discard this message?", Button: "Discard it", Danger: true, Target: here + "/discard", Back: here,
		Text: "It is deleted for good. Its ID is not recorded: if it is published again, it is processed.",
		Fields: [][2]string{
			{"Message ID", string(m.MessageID)},
			{"Consumer", m.Consumer},
			{"Reason", m.Reason.String()},
			{"Body", fmt.Sprintf("%d bytes", len(m.Body))},
		},
	})
}

func (a *Admin) viewConfirmRecord(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	key, err := a.pageKey(q)
	if err != nil {
		return err
	}
	c := confirmation{
		Back: lookupURL(key), Hidden: url.Values{"consumer": {key.Consumer}, "id": {string(key.ID)}},
		Fields: [][2]string{{"Consumer", key.Consumer}, {"Message ID", string(key.ID)}},
	}
	switch q.Get("action") {
	case actionForget:
		c.Heading, c.Button, c.Danger, c.Target = "Forget this record?", "Forget it", true, "/records/forget"
		c.Text = "When the message comes again, it is forwarded again. The handler gets the same Idempotency-Key; whether it acts twice is up to the handler."
	case actionRecord:
		c.Heading, c.Button, c.Danger, c.Target = "Record this message as processed?", "Record it", true, "/records/record"
		c.Text = "Every delivery of it is acked without a request from now on, although the handler has not seen it."
	default:
		return badRequest("action: %q is neither record nor forget", cut(q.Get("action"), 20))
	}
	return a.confirm(w, r, c)
}
