package postgres

import (
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/inboxd/inboxd/internal/inbox"
	"github.com/inboxd/inboxd/internal/store"
)

const (
	summaryColumns = `p.id, p.consumer, p.message_id, p.fingerprint, p.reason, p.state, p.attempts, p.requests, p.slow, p.replays,
		p.last_status, p.error, p.queue, p.redelivered, p.first_received, p.last_attempt, p.parked_at, p.due, p.envelope`
	wholeColumns = summaryColumns + `, p.headers, p.answer, p.body`
)

// collect reads all rows of summaryColumns, or of wholeColumns where whole is set.
func collect(rows pgx.Rows, err error, whole bool) ([]*inbox.ParkedMessage, error) {
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (*inbox.ParkedMessage, error) { return scanParked(row, whole) })
}

func scanParked(row pgx.CollectableRow, whole bool) (*inbox.ParkedMessage, error) {
	m := new(inbox.ParkedMessage)
	var fp []byte
	var id, reason, state, envelope, headers string
	var first, last, due *time.Time
	into := []any{
		&m.ID, &m.Consumer, &id, &fp, &reason, &state, &m.Attempts, &m.Requests, &m.Slow, &m.Replays,
		&m.LastStatus, &m.Error, &m.Queue, &m.Redelivered, &first, &last, &m.ParkedAt, &due, &envelope,
	}
	if whole {
		into = append(into, &headers, &m.Answer, &m.Body)
	}
	if err := row.Scan(into...); err != nil {
		return nil, err
	}
	m.MessageID, m.State = inbox.MessageID(id), inbox.ParkedState(state)
	copy(m.Fingerprint[:], fp)
	m.Reason, _ = inbox.ParseParkReason(reason)
	m.FirstReceived, m.LastAttempt, m.Due = orZero(first), orZero(last), orZero(due)
	m.ParkedAt = m.ParkedAt.UTC()
	if err := store.UnmarshalEnvelope([]byte(envelope), &m.Message); err != nil {
		return nil, err
	}
	if !whole {
		return m, nil
	}
	var err error
	m.Headers, err = store.UnmarshalHeaders([]byte(headers))
	return m, err
}

// values are the arguments of a message in the order of insertParkedSQL.
func values(m *inbox.ParkedMessage) ([]any, error) {
	envelope, err := store.MarshalEnvelope(&m.Message)
	if err != nil {
		return nil, err
	}
	headers, err := store.MarshalHeaders(m.Headers)
	if err != nil {
		return nil, err
	}
	at := m.ParkedAt
	if at.IsZero() {
		at = time.Now()
	}
	var fp []byte
	if !m.Fingerprint.IsZero() {
		fp = m.Fingerprint[:]
	}
	return []any{
		m.ID, m.Consumer, string(m.MessageID), store.BodyHash(m.Body), fp, m.Reason.String(), string(m.State),
		m.Attempts, m.Requests, m.Slow, m.Replays, m.LastStatus, store.ParkedText(m.Error), store.PlainText(m.Queue), m.Redelivered,
		orNull(m.FirstReceived), orNull(m.LastAttempt), at, orNull(m.Due),
		string(envelope), string(headers), notNil(m.Answer), notNil(m.Body),
	}, nil
}

func orNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func orZero(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.UTC()
}

func notNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}
