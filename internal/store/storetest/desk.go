package storetest

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
)

func testList(t *testing.T, p Place) {
	s := p.Open(t, Options{})
	for i := range 7 {
		m := parked(fmt.Sprintf("m%d", i), fmt.Sprint("body", i))
		m.ParkedAt = m.ParkedAt.Add(time.Duration(i) * time.Hour)
		if i == 3 {
			m.Reason = inbox.Mismatch
		}
		if i == 4 {
			m.State, m.Reason, m.Due = inbox.StateDeferred, inbox.NoReason, time.Unix(2e9, 0).UTC()
		}
		if i == 5 {
			m.Consumer = "mail"
		}
		park(t, s, m)
	}
	list := func(f inbox.ParkedFilter, after string, limit int) []*inbox.ParkedMessage {
		t.Helper()
		page, err := s.ListParked(t.Context(), f, after, limit)
		must(t, err)
		return page
	}
	page := list(inbox.ParkedFilter{}, "", 3)
	wantIDs(t, "first page", page, "m0", "m1", "m2")
	wantIDs(t, "second page", list(inbox.ParkedFilter{}, page[2].ID, 3), "m3", "m4", "m5")
	wantIDs(t, "by consumer", list(inbox.ParkedFilter{Consumer: "mail"}, "", 9), "m5")
	wantIDs(t, "by reason", list(inbox.ParkedFilter{Reason: inbox.Mismatch}, "", 9), "m3")
	wantIDs(t, "by state", list(inbox.ParkedFilter{State: inbox.StateDeferred}, "", 9), "m4")
	wantIDs(t, "by message ID", list(inbox.ParkedFilter{MessageID: "m2"}, "", 9), "m2")
	wantIDs(t, "by age", list(inbox.ParkedFilter{Before: page[2].ParkedAt}, "", 9), "m0", "m1")
	wantIDs(t, "by all", list(inbox.ParkedFilter{
		Consumer: Consumer, Reason: inbox.AttemptsUsed, State: inbox.StateParked,
		MessageID: "m1", Before: page[2].ParkedAt,
	}, "", 9), "m1")
	wantIDs(t, "nothing", list(inbox.ParkedFilter{Consumer: "x"}, "", 9))

	want := get(t, s, page[0].ID)
	want.Body, want.Headers, want.Answer = nil, nil, nil
	same(t, "in the list", page[0], want)
}

func testCount(t *testing.T, p Place) {
	s := p.Open(t, Options{})
	oldest := parked("a", "")
	for i, m := range []*inbox.ParkedMessage{oldest, parked("b", ""), deferred("c", time.Now())} {
		m.ParkedAt = m.ParkedAt.Add(time.Duration(i) * time.Hour)
		park(t, s, m)
	}
	counts, err := s.CountParked(t.Context())
	must(t, err)
	got := make(map[inbox.ParkedState]inbox.ParkedCount)
	for _, c := range counts {
		got[c.State] = c
	}
	want := inbox.ParkedCount{Consumer: Consumer, State: inbox.StateParked, Reason: inbox.AttemptsUsed, Count: 2, Oldest: oldest.ParkedAt}
	if got[inbox.StateParked] != want || got[inbox.StateDeferred].Count != 1 || len(counts) != 2 {
		t.Errorf("got %+v, want %+v and one deferred", counts, want)
	}
}

func testRecordsByHand(t *testing.T, p Place) {
	s := p.Open(t, Options{})
	_, err := s.Lookup(t.Context(), key("a"))
	wantNotFound(t, "Lookup", err)
	wantNotFound(t, "Forget", s.Forget(t.Context(), key("a")))
	for _, want := range []bool{true, false} {
		got, err := s.MarkRecorded(t.Context(), key("a"), fingerprint(1))
		must(t, err)
		if got != want {
			t.Errorf("MarkRecorded: got %v, want %v", got, want)
		}
	}
	r, err := s.Lookup(t.Context(), key("a"))
	must(t, err)
	if r.Key != key("a") || r.Fingerprint != fingerprint(1) || near(r.RecordedAt, time.Now()) != nil {
		t.Errorf("Lookup: got %+v", r)
	}
	wantStatus(t, s, key("a"), fingerprint(1), inbox.ClaimRecorded)
	must(t, s.Forget(t.Context(), key("a")))
	wantStatus(t, s, key("a"), fingerprint(1), inbox.ClaimNew)
}

func testAudit(t *testing.T, p Place) {
	s := p.Open(t, Options{})
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for i := range 3 {
		must(t, s.Audit(t.Context(), inbox.AuditEntry{
			At: at.Add(time.Duration(i) * time.Second), Actor: "eve",
			Action: "replay", Consumer: Consumer, Target: fmt.Sprint(i), Reason: "because \x00",
		}))
	}
	entries, err := s.ListAudit(t.Context(), 2)
	must(t, err)
	want := inbox.AuditEntry{At: at.Add(2 * time.Second), Actor: "eve", Action: "replay", Consumer: Consumer, Target: "2", Reason: "because \uFFFD"}
	if len(entries) != 2 || entries[0] != want || entries[1].Target != "1" {
		t.Errorf("got %+v, want %+v first and two in all", entries, want)
	}
}

func testPauses(t *testing.T, p Place) {
	s := p.Open(t, Options{})
	must(t, s.SetPaused(t.Context(), Consumer, true, "looking into it"))
	must(t, s.SetPaused(t.Context(), "mail", true, "a"))
	must(t, s.SetPaused(t.Context(), "mail", true, "b"))
	must(t, s.SetPaused(t.Context(), "other", true, ""))
	must(t, s.SetPaused(t.Context(), "other", false, ""))
	must(t, s.Close())
	s = p.Open(t, Options{})
	got, err := s.Paused(t.Context())
	must(t, err)
	if want := map[string]string{Consumer: "looking into it", "mail": "b"}; !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func testHealthy(t *testing.T, p Place) {
	s := p.Open(t, Options{})
	must(t, s.Healthy(t.Context()))
	findings := s.Examine(t.Context())
	if len(findings) == 0 {
		t.Error("Examine: got nothing")
	}
	for _, f := range findings {
		if f.Level == inbox.LevelFail {
			t.Errorf("Examine: got %+v", f)
		}
	}
}
