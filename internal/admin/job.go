package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
)

const (
	jobPage = 500
	// jobWriters is the most verbs at once; fewer at low rates, one for every
	// jobWriterRate messages a second.
	jobWriters    = 8
	jobWriterRate = 20
	// jobWindow is how many replayed messages may wait for their turn: a replay
	// goes no faster than the handler takes, and can be stopped.
	jobWindow = 1000
	// jobPatience is how long a replay follows what became of the last messages
	// that it made due.
	jobPatience = 2 * time.Minute
)

// sent is a message that was made due. prev is the ID handled before it, so
// that a listing after prev begins with it.
type sent struct {
	id, prev    string
	lastAttempt time.Time
}

// job is one Job at work. filter and ready are fixed; mu guards the rest.
type job struct {
	jobs   *jobs
	filter inbox.ParkedFilter
	ready  chan struct{} // closed when the audit table says that it starts

	mu sync.Mutex
	Job
	counted bool
	cursor  string // the last ID that was handled
	pending []sent // not known to be taken up; in the order of their IDs
	cancel  context.CancelFunc
	done    chan struct{}
}

func (j *job) snapshot() Job {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := j.Job
	s.Waiting = len(j.pending)
	return s
}

func (j *job) begin(cancel context.CancelFunc) (done chan struct{}) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.State, j.Error, j.Ended = JobRunning, "", time.Time{}
	j.cancel, j.done = cancel, make(chan struct{})
	return j.done
}

// stop ends the job and waits until it has ended.
func (j *job) stop(ctx context.Context) error {
	j.mu.Lock()
	if j.State != JobRunning {
		defer j.mu.Unlock()
		return conflict("it is %s", j.State)
	}
	j.cancel()
	done := j.done
	j.mu.Unlock()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (j *job) run(ctx context.Context) {
	<-j.ready
	err := j.count(ctx)
	if err == nil {
		err = j.walk(ctx)
	}
	if err == nil {
		err = j.follow(ctx, 0, time.Now().Add(jobPatience))
	}
	j.mu.Lock()
	j.Ended = time.Now().UTC()
	switch {
	case err == nil:
		j.State = JobDone
	case ctx.Err() != nil:
		j.State = JobStopped
	default:
		j.State, j.Error = JobFailed, err.Error()
	}
	s := j.Job
	waiting := len(j.pending)
	j.mu.Unlock()
	trace(ctx, j.jobs.desk, j.jobs.log, s.Actor, deed{
		action: byFilter(s.Action) + "-" + string(s.State), consumer: j.filter.Consumer, target: s.Filter,
		why: summary(s), facts: []any{"run", s.ID, "handled", s.Handled, "total", s.Total, "waiting", waiting, "err", s.Error},
	})
}

func summary(s Job) string {
	if s.Action == actionDiscard {
		return fmt.Sprintf("%d of %d discarded, %d gone before", s.Handled-s.Gone, s.Total, s.Gone)
	}
	return fmt.Sprintf("%d of %d made due: %d processed, %d parked again, %d deferred, %d gone before",
		s.Handled-s.Gone, s.Total, s.Processed, s.CameBack, s.Deferred, s.Gone)
}

// count learns how many messages are selected. A resumed job knows already.
func (j *job) count(ctx context.Context) error {
	j.mu.Lock()
	counted := j.counted
	j.mu.Unlock()
	if counted {
		return nil
	}
	total, after := 0, ""
	for {
		ms, err := j.jobs.desk.ListParked(ctx, j.filter, after, jobPage)
		if err != nil {
			return fmt.Errorf("counting messages: %w", err)
		}
		total += len(ms)
		j.mu.Lock()
		j.Total, j.counted = total, len(ms) < jobPage
		j.mu.Unlock()
		if len(ms) < jobPage {
			return nil
		}
		after = ms[len(ms)-1].ID
	}
}

// walk handles the selected messages in the order of their IDs, at the job's
// rate. The cursor moves on after them: nothing is handled twice by one job.
func (j *job) walk(ctx context.Context) error {
	perSecond := j.snapshot().Rate
	atOnce := min(max(perSecond/jobWriterRate, 1), jobWriters)
	pace := newPace(perSecond)
	defer pace.stop()
	nextLook := time.Now().Add(j.jobs.tick)
	for {
		ms, err := j.jobs.desk.ListParked(ctx, j.filter, j.at(), jobPage)
		if err != nil {
			return fmt.Errorf("listing messages: %w", err)
		}
		for few := range slices.Chunk(ms, atOnce) {
			for range few {
				if err := pace.wait(ctx); err != nil {
					return err
				}
			}
			if err := j.handle(ctx, few); err != nil {
				return err
			}
			full := j.waiting() >= jobWindow
			if !full && time.Now().Before(nextLook) {
				continue
			}
			if err := j.look(ctx); err != nil {
				return err
			}
			if full {
				if err := j.follow(ctx, jobWindow/2, time.Time{}); err != nil {
					return err
				}
			}
			nextLook = time.Now().Add(j.jobs.tick)
		}
		if len(ms) < jobPage {
			return nil
		}
	}
}

func (j *job) at() (cursor string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.cursor
}

func (j *job) waiting() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.pending)
}

// handle carries the verb out on a few messages at once, so that a store that
// collects concurrent writes can. Those that succeed count; the cursor stops
// before the first that does not.
func (j *job) handle(ctx context.Context, few []*inbox.ParkedMessage) error {
	// A verb that has begun is not cut short: its effect must be known.
	whole := context.WithoutCancel(ctx)
	do := j.jobs.desk.Replay
	if j.Action == actionDiscard {
		do = j.jobs.desk.Discard
	}
	errs := make([]error, len(few))
	var wg sync.WaitGroup
	for i, m := range few {
		wg.Go(func() { errs[i] = do(whole, m.ID) })
	}
	wg.Wait()

	var failed error
	prev := j.at()
	for i, m := range few {
		err := errs[i]
		if err != nil && !errors.Is(err, inbox.ErrNotFound) {
			if failed == nil {
				failed = fmt.Errorf("%s of %s: %w", j.Action, m.ID, err)
			}
			continue
		}
		j.handled(ctx, m, prev, err == nil, failed == nil)
		prev = m.ID
	}
	return failed
}

// handled accounts for one message: there tells whether it was there still.
func (j *job) handled(ctx context.Context, m *inbox.ParkedMessage, prev string, there, moveOn bool) {
	j.mu.Lock()
	if moveOn {
		j.cursor = m.ID
	}
	j.Handled++
	switch {
	case !there:
		j.Gone++
	case j.Action == actionReplay:
		j.pending = append(j.pending, sent{m.ID, prev, m.LastAttempt})
	}
	actor, why := j.Actor, j.Why
	j.mu.Unlock()
	switch {
	case !there:
	case j.Action == actionReplay:
		j.jobs.replayed(m.Consumer)
	default:
		// What is gone for good is in the audit table one by one.
		trace(ctx, j.jobs.desk, j.jobs.log, actor, deed{action: actionDiscard, consumer: m.Consumer, target: targetOf(m), why: why})
	}
}
