// Package admintest has a store in memory for tests of the admin side and of its
// client. It keeps the contract of inbox.Desk as far as these tests need it.
package admintest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
)

// Store is a Desk and a Parker in memory. It counts what it changes, so
// that tests can assert that nothing changed.
type Store struct {
	Mu      sync.Mutex
	next    int
	Parked  map[string]*inbox.ParkedMessage
	Records map[inbox.Key]inbox.Recorded
	Deeds   []inbox.AuditEntry // oldest first
	writes  int
	err     error // what every call answers
	// handler is asked about every replayed message at once: "" processes it.
	Handler func(*inbox.ParkedMessage) inbox.ParkedState
}

// NewStore returns an empty store.
func NewStore() *Store {
	return &Store{Parked: map[string]*inbox.ParkedMessage{}, Records: map[inbox.Key]inbox.Recorded{}}
}

func (s *Store) Park(_ context.Context, m *inbox.ParkedMessage) error {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.err != nil {
		return s.err
	}
	s.writes++
	for _, old := range s.Parked {
		if m.ID == "" && m.MessageID != "" && old.Consumer == m.Consumer && old.MessageID == m.MessageID && string(old.Body) == string(m.Body) {
			m.ID = old.ID
		}
	}
	if m.ID == "" {
		s.next++
		m.ID = fmt.Sprintf("%08d", s.next)
	}
	c := *m
	s.Parked[m.ID] = &c
	return nil
}

func (s *Store) ListParked(_ context.Context, f inbox.ParkedFilter, after string, limit int) ([]*inbox.ParkedMessage, error) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.err != nil {
		return nil, s.err
	}
	var out []*inbox.ParkedMessage
	for _, m := range s.Parked {
		switch {
		case m.ID <= after,
			f.Consumer != "" && m.Consumer != f.Consumer,
			f.MessageID != "" && m.MessageID != f.MessageID,
			f.Reason != 0 && m.Reason != f.Reason,
			f.State != "" && m.State != f.State,
			!f.Before.IsZero() && !m.ParkedAt.Before(f.Before):
			continue
		}
		c := *m
		c.Body, c.Headers, c.Answer = nil, nil, nil
		out = append(out, &c)
	}
	slices.SortFunc(out, func(a, b *inbox.ParkedMessage) int { return cmp.Compare(a.ID, b.ID) })
	return out[:min(limit, len(out))], nil
}

func (s *Store) CountParked(context.Context) ([]inbox.ParkedCount, error) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.err != nil {
		return nil, s.err
	}
	counts := map[inbox.ParkedCount]int64{}
	for _, m := range s.Parked {
		counts[inbox.ParkedCount{Consumer: m.Consumer, State: m.State, Reason: m.Reason}]++
	}
	var out []inbox.ParkedCount
	for c, n := range counts {
		c.Count = n
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b inbox.ParkedCount) int {
		return cmp.Or(cmp.Compare(a.Consumer, b.Consumer), cmp.Compare(a.State, b.State), cmp.Compare(a.Reason, b.Reason))
	})
	return out, nil
}

func (s *Store) GetParked(_ context.Context, id string) (*inbox.ParkedMessage, error) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.err != nil {
		return nil, s.err
	}
	m, ok := s.Parked[id]
	if !ok {
		return nil, inbox.ErrNotFound
	}
	c := *m
	return &c, nil
}

func (s *Store) Replay(_ context.Context, id string) error {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	m, ok := s.Parked[id]
	switch {
	case s.err != nil:
		return s.err
	case !ok:
		return inbox.ErrNotFound
	}
	s.writes++
	m.State, m.Due, m.Attempts = inbox.StateDeferred, time.Now(), 0
	m.Replays++
	if s.Handler == nil {
		return nil
	}
	state := s.Handler(m)
	if state == "" {
		delete(s.Parked, id)
		return nil
	}
	m.State, m.LastAttempt, m.ParkedAt = state, time.Now(), time.Now()
	return nil
}

func (s *Store) Discard(_ context.Context, id string) error {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.err != nil {
		return s.err
	}
	if _, ok := s.Parked[id]; !ok {
		return inbox.ErrNotFound
	}
	s.writes++
	delete(s.Parked, id)
	return nil
}

func (s *Store) Lookup(_ context.Context, k inbox.Key) (inbox.Recorded, error) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.err != nil {
		return inbox.Recorded{}, s.err
	}
	r, ok := s.Records[k]
	if !ok {
		return r, inbox.ErrNotFound
	}
	return r, nil
}

func (s *Store) Forget(_ context.Context, k inbox.Key) error {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.err != nil {
		return s.err
	}
	if _, ok := s.Records[k]; !ok {
		return inbox.ErrNotFound
	}
	s.writes++
	delete(s.Records, k)
	return nil
}

func (s *Store) MarkRecorded(_ context.Context, k inbox.Key, fp inbox.Fingerprint) (bool, error) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.err != nil {
		return false, s.err
	}
	if _, ok := s.Records[k]; ok {
		return false, nil
	}
	s.writes++
	s.Records[k] = inbox.Recorded{Key: k, Fingerprint: fp, RecordedAt: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
	return true, nil
}

func (s *Store) Audit(_ context.Context, e inbox.AuditEntry) error {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.err != nil {
		return s.err
	}
	s.writes++
	s.Deeds = append(s.Deeds, e)
	return nil
}

func (s *Store) ListAudit(_ context.Context, limit int) ([]inbox.AuditEntry, error) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.err != nil {
		return nil, s.err
	}
	out := slices.Clone(s.Deeds)
	slices.Reverse(out)
	return out[:min(limit, len(out))], nil
}

// Count returns how many messages are stored.
func (s *Store) Count() int {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	return len(s.Parked)
}

// Changes returns how many writes there were.
func (s *Store) Changes() int {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	return s.writes
}

// Fail lets every call fail from now on; nil ends that.
func (s *Store) Fail(err error) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.err = err
}
