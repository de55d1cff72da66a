package admin

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
)

// follow looks until at most n replayed messages wait for their turn, or, where
// a deadline is given, until then: a handler that is down does not keep a job
// for ever.
func (j *job) follow(ctx context.Context, n int, deadline time.Time) error {
	t := time.NewTicker(j.jobs.tick)
	defer t.Stop()
	for j.waiting() > n && (deadline.IsZero() || time.Now().Before(deadline)) {
		select {
		case <-t.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := j.look(ctx); err != nil {
			return err
		}
	}
	return nil
}

// look asks the store what became of the messages that were made due.
func (j *job) look(ctx context.Context) error {
	j.mu.Lock()
	pending := slices.Clone(j.pending)
	j.mu.Unlock()
	if len(pending) == 0 {
		return nil
	}
	stored, err := j.stored(ctx, pending[0].prev, pending[len(pending)-1].id)
	if err != nil {
		return fmt.Errorf("following replayed messages: %w", err)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.pending = slices.DeleteFunc(pending, func(s sent) bool {
		m, ok := stored[s.id]
		switch {
		case !ok:
			j.Processed++
		case m.State == inbox.StateParked:
			j.CameBack++
		case !m.LastAttempt.Equal(s.lastAttempt):
			j.Deferred++
		default:
			return false
		}
		return true
	})
	return nil
}

// stored lists what is stored after one ID, up to another, whatever its state.
func (j *job) stored(ctx context.Context, after, last string) (map[string]*inbox.ParkedMessage, error) {
	f := inbox.ParkedFilter{Consumer: j.filter.Consumer, MessageID: j.filter.MessageID}
	stored := map[string]*inbox.ParkedMessage{}
	for {
		ms, err := j.jobs.desk.ListParked(ctx, f, after, jobPage)
		if err != nil {
			return nil, err
		}
		for _, m := range ms {
			stored[m.ID] = m
			if m.ID == last {
				return stored, nil
			}
		}
		if len(ms) < jobPage {
			return stored, nil
		}
		after = ms[len(ms)-1].ID
	}
}

// pace lets through so many a second.
type pace struct{ t *time.Ticker }

func newPace(perSecond int) pace {
	return pace{time.NewTicker(time.Second / time.Duration(perSecond))}
}

func (p pace) stop() { p.t.Stop() }

func (p pace) wait(ctx context.Context) error {
	select {
	case <-p.t.C:
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}
