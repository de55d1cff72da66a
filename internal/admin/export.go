package admin

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
)

const (
	exportPage = 200 // messages listed at once
	linesJSON  = "application/x-ndjson"
)

// exportParked streams whole messages, one JSON object a line. An export that
// cannot be completed ends the connection, so that it never looks complete.
func (a *Admin) exportParked(w http.ResponseWriter, r *http.Request) error {
	f, err := parseFilter(r.URL.Query())
	if err != nil {
		return err
	}
	page, err := a.Desk.ListParked(r.Context(), f, r.URL.Query().Get("after"), exportPage)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", linesJSON)
	w.Header().Set("Content-Disposition", `attachment; filename="parked.jsonl"`)
	n, err := a.exportPages(w, r, f, page)
	a.done(r, deed{
		action: actionExport, consumer: f.Consumer, target: describeFilter(f), why: whyOf(r, true),
		facts: []any{"messages", n, "complete", err == nil},
	})
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	return nil
}

func (a *Admin) exportPages(w http.ResponseWriter, r *http.Request, f inbox.ParkedFilter, page []*inbox.ParkedMessage) (n int, err error) {
	enc := json.NewEncoder(w)
	for len(page) > 0 {
		for _, m := range page {
			moreTime(w)
			whole, err := a.Desk.GetParked(r.Context(), m.ID)
			if errors.Is(err, inbox.ErrNotFound) {
				continue // it has gone since it was listed
			}
			if err != nil {
				return n, err
			}
			if err := enc.Encode(wholeOf(whole)); err != nil {
				return n, err
			}
			n++
		}
		if len(page) < exportPage {
			break
		}
		if page, err = a.Desk.ListParked(r.Context(), f, page[len(page)-1].ID, exportPage); err != nil {
			return n, err
		}
	}
	return n, nil
}

// describeFilter writes f for people: in the audit table and on the page.
func describeFilter(f inbox.ParkedFilter) string {
	q := filterQuery(f)
	var words []string
	for _, name := range []string{"consumer", "reason", "state", "message_id", "before"} {
		if q.Has(name) {
			words = append(words, name+"="+q.Get(name))
		}
	}
	if len(words) == 0 {
		return "all"
	}
	return strings.Join(words, " ")
}

// filterQuery is the inverse of parseFilter.
func filterQuery(f inbox.ParkedFilter) url.Values {
	q := url.Values{}
	set := func(name, value string) {
		if value != "" {
			q.Set(name, value)
		}
	}
	set("consumer", f.Consumer)
	set("reason", f.Reason.String())
	set("state", string(f.State))
	set("message_id", string(f.MessageID))
	if !f.Before.IsZero() {
		set("before", f.Before.UTC().Format(time.RFC3339Nano))
	}
	return q
}
