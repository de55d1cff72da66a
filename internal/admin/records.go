package admin

import (
	"context"
	"encoding/hex"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
)

// isCanonical reports whether id can be the canonical form of an ID.
func isCanonical(id inbox.MessageID) bool {
	if id == "" || len(id) > inbox.MaxMessageID {
		return false
	}
	for i := 0; i < len(id); i++ {
		switch c := id[i]; {
		case c <= ' ' || c > '~':
			return false
		case c == '%' && (i+2 >= len(id) || !isHex(id[i+1]) || !isHex(id[i+2])):
			return false
		}
	}
	return true
}

func isHex(c byte) bool { return c >= '0' && c <= '9' || c >= 'A' && c <= 'F' || c >= 'a' && c <= 'f' }

// messageIDOf returns the ID that a request names: in canonical form, in the
// path or as ?id=, or as the producer wrote it, in ?raw=.
func messageIDOf(canonical string, q url.Values) (inbox.MessageID, error) {
	if q.Has("raw") {
		if canonical != "" || q.Has("id") {
			return "", badRequest("give the message ID once: in canonical form, or as raw=")
		}
		if q.Get("raw") == "" {
			return "", badRequest("raw: an empty ID is none")
		}
		return inbox.Canonical([]byte(q.Get("raw"))), nil
	}
	if canonical == "" {
		canonical = q.Get("id")
	}
	id := inbox.MessageID(canonical)
	if !isCanonical(id) {
		return "", badRequest("%q is no message ID in canonical form; give the ID as the producer wrote it with raw=", cut(canonical, 64))
	}
	return id, nil
}

// keyOf returns the key that a request names; its consumer exists.
func (a *Admin) keyOf(r *http.Request) (inbox.Key, error) {
	consumer := r.PathValue("consumer")
	if !a.hasConsumer(consumer) {
		return inbox.Key{}, noSuchConsumer(consumer)
	}
	id, err := messageIDOf(r.PathValue("message_id"), r.URL.Query())
	return inbox.Key{Consumer: consumer, ID: id}, err
}

func noSuchConsumer(name string) *Problem {
	return notFound("no consumer is named %q", cut(name, 64))
}

func parseFingerprint(s string) (f inbox.Fingerprint, err error) {
	if s == "" {
		return f, nil
	}
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != len(f) {
		return f, badRequest("fingerprint: %q is not %d hexadecimal digits", cut(s, 64), 2*len(f))
	}
	copy(f[:], b)
	return f, nil
}

// Record is a record of the inbox.
type Record struct {
	Consumer    string          `json:"consumer"`
	MessageID   inbox.MessageID `json:"message_id"`
	Fingerprint string          `json:"fingerprint,omitempty"`
	RecordedAt  time.Time       `json:"recorded_at,omitzero"`
	// Result is what a verb did: recorded, already_recorded, forgotten.
	Result string `json:"result,omitempty"`
}

func (a *Admin) getRecord(w http.ResponseWriter, r *http.Request) error {
	key, err := a.keyOf(r)
	if err != nil {
		return err
	}
	rec, err := a.Desk.Lookup(r.Context(), key)
	if err != nil {
		return noSuchRecord(key, err)
	}
	return writeJSON(w, http.StatusOK, recordOf(rec))
}

func recordOf(rec inbox.Recorded) Record {
	return Record{
		Consumer: rec.Key.Consumer, MessageID: rec.Key.ID,
		Fingerprint: rec.Fingerprint.String(), RecordedAt: rec.RecordedAt,
	}
}

func noSuchRecord(key inbox.Key, err error) error {
	if errors.Is(err, inbox.ErrNotFound) {
		return notFound("%s has no record of %q: it was not processed, or its record is older than the retention", key.Consumer, key.ID)
	}
	return err
}

func (a *Admin) putRecord(w http.ResponseWriter, r *http.Request) error {
	key, err := a.keyOf(r)
	if err != nil {
		return err
	}
	fp, err := parseFingerprint(r.URL.Query().Get("fingerprint"))
	if err != nil {
		return err
	}
	fresh, err := a.record(r, key, fp, whyOf(r, false))
	if err != nil {
		return err
	}
	res, status := "already_recorded", http.StatusOK
	if fresh {
		res, status = "recorded", http.StatusCreated
	}
	return writeJSON(w, status, Record{Consumer: key.Consumer, MessageID: key.ID, Fingerprint: fp.String(), Result: res})
}

func (a *Admin) record(r *http.Request, key inbox.Key, fp inbox.Fingerprint, why string) (bool, error) {
	fresh, err := a.Desk.MarkRecorded(r.Context(), key, fp)
	if err != nil {
		return false, err
	}
	a.done(r, deed{
		action: actionRecord, consumer: key.Consumer, target: string(key.ID), why: why,
		facts: []any{"new", fresh},
	})
	return fresh, nil
}

func (a *Admin) deleteRecord(w http.ResponseWriter, r *http.Request) error {
	key, err := a.keyOf(r)
	if err != nil {
		return err
	}
	if err := a.forget(r, key, whyOf(r, false)); err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, Record{Consumer: key.Consumer, MessageID: key.ID, Result: "forgotten"})
}

func (a *Admin) forget(r *http.Request, key inbox.Key, why string) error {
	if err := a.Desk.Forget(r.Context(), key); err != nil {
		return noSuchRecord(key, err)
	}
	a.done(r, deed{action: actionForget, consumer: key.Consumer, target: string(key.ID), why: why})
	return nil
}

// importRecords records a list of IDs, one a line, as the producer writes them,
// or in canonical form with canonical=true.
func (a *Admin) importRecords(w http.ResponseWriter, r *http.Request) error {
	consumer := r.PathValue("consumer")
	if !a.hasConsumer(consumer) {
		return noSuchConsumer(consumer)
	}
	parse := func(b []byte) (inbox.MessageID, error) { return inbox.Canonical(b), nil }
	if r.URL.Query().Get("canonical") == "true" {
		parse = func(b []byte) (inbox.MessageID, error) { return messageIDOf(strings.TrimSpace(string(b)), nil) }
	}
	res, err := importLines(w, r, parse, func(ctx context.Context, id inbox.MessageID) (bool, error) {
		return a.Desk.MarkRecorded(ctx, inbox.Key{Consumer: consumer, ID: id}, inbox.Fingerprint{})
	})
	return a.answerImport(w, r, res, err, deed{action: actionImportIDs, consumer: consumer, target: countOf(res.Imported, "ID")})
}
