package admin

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
)

const (
	defaultLimit = 100
	maxLimit     = 1000
)

// parseFilter reads consumer, reason, state, message_id or raw, and before
// (RFC 3339) or older (a duration). A word that selects nothing is an error: a
// misspelled filter must not select everything.
func parseFilter(q url.Values) (f inbox.ParkedFilter, err error) {
	f.Consumer = q.Get("consumer")
	if s := q.Get("reason"); s != "" {
		reason, ok := inbox.ParseParkReason(s)
		if !ok {
			return f, badRequest("reason: %q is not one of %v", s, inbox.ParkReasons)
		}
		f.Reason = reason
	}
	switch s := inbox.ParkedState(q.Get("state")); s {
	case "", inbox.StateParked, inbox.StateDeferred:
		f.State = s
	default:
		return f, badRequest("state: %q is neither parked nor deferred", s)
	}
	if q.Has("message_id") || q.Has("raw") {
		id, err := messageIDOf(q.Get("message_id"), q)
		if err != nil && q.Get("message_id")+q.Get("raw") != "" {
			return f, err
		}
		f.MessageID = id
	}
	f.Before, err = parseBefore(q, time.Now())
	return f, err
}

func parseBefore(q url.Values, now time.Time) (time.Time, error) {
	if s := q.Get("before"); s != "" {
		t, err := time.Parse(time.RFC3339, s)
		if err != nil {
			return time.Time{}, badRequest("before: %q is not a time like 2006-01-02T15:04:05Z", s)
		}
		return t.UTC(), nil
	}
	if s := q.Get("older"); s != "" {
		d, err := parseAge(s)
		if err != nil || d < 0 {
			return time.Time{}, badRequest("older: %q is not a duration like 36h or 7d", s)
		}
		return now.Add(-d).UTC(), nil
	}
	return time.Time{}, nil
}

// parseAge is time.ParseDuration that knows days, alone.
func parseAge(s string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(s, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 16)
		return time.Duration(n) * 24 * time.Hour, err
	}
	return time.ParseDuration(s)
}

func parseLimit(q url.Values) (int, error) {
	s := q.Get("limit")
	if s == "" {
		return defaultLimit, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > maxLimit {
		return 0, badRequest("limit: must be 1 to %d, got %q", maxLimit, s)
	}
	return n, nil
}

func (a *Admin) parkedPage(ctx context.Context, q url.Values) (ParkedList, error) {
	f, err := parseFilter(q)
	if err != nil {
		return ParkedList{}, err
	}
	limit, err := parseLimit(q)
	if err != nil {
		return ParkedList{}, err
	}
	// One more than asked for tells whether there is a next page.
	ms, err := a.Desk.ListParked(ctx, f, q.Get("after"), limit+1)
	if err != nil {
		return ParkedList{}, err
	}
	list := ParkedList{Parked: []Parked{}}
	if len(ms) > limit {
		ms = ms[:limit]
		list.Next = ms[limit-1].ID
	}
	for _, m := range ms {
		list.Parked = append(list.Parked, parkedOf(m))
	}
	return list, nil
}

func (a *Admin) listParked(w http.ResponseWriter, r *http.Request) error {
	list, err := a.parkedPage(r.Context(), r.URL.Query())
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, list)
}

func (a *Admin) getParked(w http.ResponseWriter, r *http.Request) error {
	m, err := a.parkedMessage(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	moreTime(w)
	return writeJSON(w, http.StatusOK, wholeOf(m))
}

func (a *Admin) parkedMessage(ctx context.Context, id string) (*inbox.ParkedMessage, error) {
	m, err := a.Desk.GetParked(ctx, id)
	return m, noSuchParked(id, err)
}

func noSuchParked(id string, err error) error {
	if errors.Is(err, inbox.ErrNotFound) {
		return notFound("no message is stored as %q: it was processed or discarded, or never parked", cut(id, 64))
	}
	return err
}

// Done is the answer of a verb.
type Done struct {
	ID     string `json:"id"`
	Result string `json:"result"` // due, discarded
}

func (a *Admin) replayOne(w http.ResponseWriter, r *http.Request) error {
	id := r.PathValue("id")
	if err := a.replayParked(r, id, whyOf(r, false)); err != nil {
		return err
	}
	return writeJSON(w, http.StatusAccepted, Done{ID: id, Result: "due"})
}

func (a *Admin) discardOne(w http.ResponseWriter, r *http.Request) error {
	id := r.PathValue("id")
	if err := a.discardParked(r, id, whyOf(r, false)); err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, Done{ID: id, Result: "discarded"})
}

func (a *Admin) replayParked(r *http.Request, id, why string) error {
	m, err := a.parkedMessage(r.Context(), id)
	if err != nil {
		return err
	}
	if err := a.Desk.Replay(r.Context(), id); err != nil {
		return noSuchParked(id, err)
	}
	a.Replayed(m.Consumer)
	a.done(r, deed{action: actionReplay, consumer: m.Consumer, target: targetOf(m), why: why})
	return nil
}

func (a *Admin) discardParked(r *http.Request, id, why string) error {
	m, err := a.parkedMessage(r.Context(), id)
	if err != nil {
		return err
	}
	if err := a.Desk.Discard(r.Context(), id); err != nil {
		return noSuchParked(id, err)
	}
	a.done(r, deed{action: actionDiscard, consumer: m.Consumer, target: targetOf(m), why: why})
	return nil
}

// targetOf names a stored message in the audit table so that it can be found by
// either of its IDs. Neither has a space.
func targetOf(m *inbox.ParkedMessage) string {
	return strings.TrimSpace(m.ID + " " + string(m.MessageID))
}
