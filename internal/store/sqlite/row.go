package sqlite

import (
	"database/sql"
	"errors"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
	"github.com/inboxd/inboxd/internal/store"
)

const (
	summaryColumns = `id, consumer, message_id, fingerprint, reason, state, attempts, requests, slow, replays,
		last_status, error, queue, redelivered, first_received, last_attempt, parked_at, due, envelope`
	wholeColumns = summaryColumns + `, headers, answer, body`
)

type scanner interface{ Scan(dest ...any) error }

// scanParked reads summaryColumns, or wholeColumns where whole is set.
func scanParked(row scanner, whole bool) (*inbox.ParkedMessage, error) {
	m := new(inbox.ParkedMessage)
	var fp, envelope, headers sql.RawBytes
	var reason string
	var first, last, parked, due int64
	into := []any{
		&m.ID, &m.Consumer, &m.MessageID, &fp, &reason, &m.State, &m.Attempts, &m.Requests, &m.Slow, &m.Replays,
		&m.LastStatus, &m.Error, &m.Queue, &m.Redelivered, &first, &last, &parked, &due, &envelope,
	}
	if whole {
		into = append(into, &headers, &m.Answer, &m.Body)
	}
	if err := row.Scan(into...); err != nil {
		return nil, err
	}
	copy(m.Fingerprint[:], fp)
	m.Reason, _ = inbox.ParseParkReason(reason)
	m.FirstReceived, m.LastAttempt = store.FromMillis(first), store.FromMillis(last)
	m.ParkedAt, m.Due = store.FromMillis(parked), store.FromMillis(due)
	if err := store.UnmarshalEnvelope(envelope, &m.Message); err != nil {
		return nil, err
	}
	if !whole {
		return m, nil
	}
	var err error
	m.Headers, err = store.UnmarshalHeaders(headers)
	return m, err
}

// collect reads all rows and closes them.
func collect(rows *sql.Rows, whole bool) (_ []*inbox.ParkedMessage, err error) {
	defer func() { err = errors.Join(err, rows.Close()) }()
	var messages []*inbox.ParkedMessage
	for rows.Next() {
		m, err := scanParked(rows, whole)
		if err != nil {
			return nil, err
		}
		messages = append(messages, m)
	}
	return messages, rows.Err()
}

// values are the arguments of a message in the order of upsertSQL.
func values(m *inbox.ParkedMessage) ([]any, error) {
	envelope, err := store.MarshalEnvelope(&m.Message)
	if err != nil {
		return nil, err
	}
	headers, err := store.MarshalHeaders(m.Headers)
	if err != nil {
		return nil, err
	}
	if m.ParkedAt.IsZero() {
		m.ParkedAt = time.Now().UTC()
	}
	var fp []byte
	if !m.Fingerprint.IsZero() {
		fp = m.Fingerprint[:]
	}
	return []any{
		m.ID, m.Consumer, string(m.MessageID), store.BodyHash(m.Body), fp, m.Reason.String(), string(m.State),
		m.Attempts, m.Requests, m.Slow, m.Replays, m.LastStatus, store.ParkedText(m.Error), store.PlainText(m.Queue), m.Redelivered,
		store.Millis(m.FirstReceived), store.Millis(m.LastAttempt), store.Millis(m.ParkedAt), store.Millis(m.Due),
		string(envelope), string(headers), notNil(m.Answer), notNil(m.Body),
	}, nil
}

func notNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}
