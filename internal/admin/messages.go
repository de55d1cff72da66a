package admin

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/inboxd/inboxd/internal/inbox"
)

// MessageLedger is all that is known of one message of one consumer.
type MessageLedger struct {
	Consumer  string          `json:"consumer"`
	MessageID inbox.MessageID `json:"message_id"`
	// Verdict is one of processed, in_flight, deferred, parked, unknown.
	Verdict string `json:"verdict"`
	// Words says the verdict in a sentence.
	Words    string       `json:"words"`
	Record   *Record      `json:"record"`
	Stored   []Parked     `json:"stored"`
	InFlight []Flight     `json:"in_flight"`
	Audit    []AuditEntry `json:"audit"`
	// NotKept says what nobody knows any more, or what only others know.
	NotKept []string `json:"not_kept"`
}

// auditDepth is how many entries of the audit table are searched.
const auditDepth = 1000

func (a *Admin) getMessage(w http.ResponseWriter, r *http.Request) error {
	key, err := a.keyOf(r)
	if err != nil {
		return err
	}
	l, err := a.ledgerOf(r.Context(), key)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, l)
}

// ledgerOf collects what is known of key. The places are asked in the order in
// which a message passes through them, so that one that moves on meanwhile is
// seen twice rather than nowhere.
func (a *Admin) ledgerOf(ctx context.Context, key inbox.Key) (*MessageLedger, error) {
	l := &MessageLedger{Consumer: key.Consumer, MessageID: key.ID, Stored: []Parked{}, Audit: []AuditEntry{}}
	l.InFlight = append([]Flight{}, a.InFlight(key)...)
	ms, err := a.Desk.ListParked(ctx, inbox.ParkedFilter{Consumer: key.Consumer, MessageID: key.ID}, "", defaultLimit)
	if err != nil {
		return nil, err
	}
	for _, m := range ms {
		l.Stored = append(l.Stored, parkedOf(m))
	}
	switch rec, err := a.Desk.Lookup(ctx, key); {
	case err == nil:
		r := recordOf(rec)
		l.Record = &r
	case !errors.Is(err, inbox.ErrNotFound):
		return nil, err
	}
	deeds, err := a.Desk.ListAudit(ctx, auditDepth)
	if err != nil {
		return nil, err
	}
	for _, e := range deeds {
		if e.Consumer == key.Consumer && slices.Contains(strings.Fields(e.Target), string(key.ID)) {
			l.Audit = append(l.Audit, AuditEntry(e))
		}
	}
	l.judge(a.Store().Retention)
	return l, nil
}

// judge draws the verdict and says what is not kept.
func (l *MessageLedger) judge(retention string) {
	if retention == "" {
		retention = "the retention"
	}
	switch {
	case l.Record != nil && len(l.Stored) > 0:
		l.Verdict = "processed"
		l.Words = "Processed and recorded. A stored message with this ID is kept too: a second message with another body, or one whose copy is about to be removed."
	case l.Record != nil:
		l.Verdict = "processed"
		l.Words = "Processed: the handler answered 2xx and that was recorded, or a person recorded it. Further deliveries are acked without a request."
	case len(l.InFlight) > 0:
		l.Verdict = "in_flight"
		l.Words = "In work in this process at the moment."
	case slices.ContainsFunc(l.Stored, func(p Parked) bool { return p.State == inbox.StateParked }):
		l.Verdict = "parked"
		l.Words = "Parked: it waits for a person to replay or discard it."
	case len(l.Stored) > 0:
		l.Verdict = "deferred"
		l.Words = "Deferred: stored, and taken up again by itself when due."
	default:
		l.Verdict = "unknown"
		l.Words = "Nothing is known of this ID here. It was never delivered to this consumer, or it still lies in the queue, or another process holds it, or its record is older than " + retention + "."
	}
	l.NotKept = notKept(l, retention)
}

func notKept(l *MessageLedger, retention string) []string {
	var s []string
	if l.Record != nil {
		s = append(s, "How often and how long it was tried, and what was answered before the 2xx: a record holds the ID, the fingerprint and the time alone.",
			"When it was first delivered, and how many of its duplicates were suppressed: duplicates are counted for the whole consumer.",
			"Its body and headers: a processed message is not kept.")
	}
	for _, p := range l.Stored {
		if p.Attempts > 1 || p.Requests > 1 {
			s = append(s, "Every answer but the last: a stored message keeps the number of its requests and the last answer.")
			break
		}
	}
	s = append(s, "What other replicas have in flight, and what waits in the broker's queue.",
		"Records older than "+retention+", and messages that were discarded, but for the audit entry.")
	return s
}
