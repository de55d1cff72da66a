package admin

import (
	"context"
	"crypto/rand"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
)

const (
	defaultRate = 100 // messages a second
	maxRate     = 10000
	maxRunning  = 4
	keepJobs    = 50
)

// JobState is the stage of a replay or discard by filter.
type JobState string

// The stages. Running ones end as one of the others; a stopped or failed one
// can be resumed.
const (
	JobRunning JobState = "running"
	JobStopped JobState = "stopped"
	JobFailed  JobState = "failed"
	JobDone    JobState = "done"
)

// Job is a replay or a discard of all messages that a filter selects.
type Job struct {
	ID     string   `json:"id"`
	Action string   `json:"action"` // replay, discard
	Filter string   `json:"filter"` // in words
	State  JobState `json:"state"`
	Actor  string   `json:"actor"`
	Why    string   `json:"why,omitempty"`
	Rate   int      `json:"rate"` // at most so many messages a second
	// Before bounds the selection: messages parked later, also those that came
	// back from this replay, are not in it.
	Before  time.Time `json:"before"`
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended,omitzero"`
	Error   string    `json:"error,omitempty"`

	// Total is how many messages were selected at the start, Handled how many
	// of them have been made due or discarded, or were gone.
	Total   int `json:"total"`
	Handled int `json:"handled"`
	// Gone is how many somebody else had taken away before their turn.
	Gone int `json:"gone"`
	// Of the replayed ones: Processed have left the store (the handler answered
	// 2xx, or they were recorded before), CameBack were parked again, Deferred
	// failed and are tried again by themselves later, Waiting were not taken up
	// yet or are in work.
	Processed int `json:"processed"`
	CameBack  int `json:"came_back"`
	Deferred  int `json:"deferred"`
	Waiting   int `json:"waiting"`
}

// JobList is the answer of GET /api/jobs, newest first.
type JobList struct {
	Jobs []Job `json:"jobs"`
}

// jobs carries the replays and discards by filter. They live in memory: after a
// restart the same filter with the same `before` goes on where they stopped.
type jobs struct {
	desk     inbox.Desk
	replayed func(string)
	log      *slog.Logger

	mu   sync.Mutex
	ctx  context.Context // of Run; nil before it
	all  []*job          // oldest first
	wg   sync.WaitGroup
	tick time.Duration // between two looks at what became of replayed messages
}

func newJobs(o Options) *jobs {
	return &jobs{desk: o.Desk, replayed: o.Replayed, log: o.Log, tick: time.Second}
}

func (js *jobs) start(ctx context.Context) {
	js.mu.Lock()
	defer js.mu.Unlock()
	js.ctx = ctx
}

func (js *jobs) wait() { js.wg.Wait() }

// add starts a job.
func (js *jobs) add(j *job) (Job, error) {
	js.mu.Lock()
	defer js.mu.Unlock()
	if err := js.roomLocked(); err != nil {
		return Job{}, err
	}
	js.all = append(js.all, j)
	for i := 0; len(js.all) > keepJobs && i < len(js.all); {
		if js.all[i].snapshot().State == JobRunning {
			i++
			continue
		}
		js.all = slices.Delete(js.all, i, i+1)
	}
	js.runLocked(j)
	return j.snapshot(), nil
}

func (js *jobs) roomLocked() error {
	if js.ctx == nil || js.ctx.Err() != nil {
		return conflict("the daemon is starting or stopping")
	}
	running := 0
	for _, j := range js.all {
		if j.snapshot().State == JobRunning {
			running++
		}
	}
	if running >= maxRunning {
		return conflict("%d replays and discards are running already; wait for one, or stop one", running)
	}
	return nil
}

func (js *jobs) runLocked(j *job) {
	ctx, cancel := context.WithCancel(js.ctx)
	done := j.begin(cancel)
	js.wg.Go(func() {
		defer close(done)
		defer cancel()
		j.run(ctx)
	})
}

func (js *jobs) resume(id string) (Job, error) {
	js.mu.Lock()
	defer js.mu.Unlock()
	j := js.findLocked(id)
	if j == nil {
		return Job{}, noSuchJob(id)
	}
	if s := j.snapshot().State; s == JobRunning || s == JobDone {
		return Job{}, conflict("it is %s", s)
	}
	if err := js.roomLocked(); err != nil {
		return Job{}, err
	}
	js.runLocked(j)
	return j.snapshot(), nil
}

func (js *jobs) findLocked(id string) *job {
	for _, j := range js.all {
		if j.snapshot().ID == id {
			return j
		}
	}
	return nil
}

func (js *jobs) find(id string) (*job, error) {
	js.mu.Lock()
	defer js.mu.Unlock()
	if j := js.findLocked(id); j != nil {
		return j, nil
	}
	return nil, noSuchJob(id)
}

func (js *jobs) list() []Job {
	js.mu.Lock()
	defer js.mu.Unlock()
	out := []Job{}
	for _, j := range slices.Backward(js.all) {
		out = append(out, j.snapshot())
	}
	return out
}

func noSuchJob(id string) *Problem {
	return notFound("no replay or discard is called %q; the daemon forgets them when it restarts", cut(id, 64))
}

func (a *Admin) startJob(action string) apiFunc {
	return func(w http.ResponseWriter, r *http.Request) error {
		j, err := a.newJob(r, action, r.URL.Query(), whyOf(r, true))
		if err != nil {
			return err
		}
		w.Header().Set("Location", "/api/jobs/"+j.ID)
		return writeJSON(w, http.StatusAccepted, j)
	}
}

// newJob starts a replay or discard of what q selects. Selecting everything has
// to be said: all=true.
func (a *Admin) newJob(r *http.Request, action string, q url.Values, why string) (Job, error) {
	f, err := parseFilter(q)
	if err != nil {
		return Job{}, err
	}
	if f == (inbox.ParkedFilter{}) && q.Get("all") != "true" {
		return Job{}, badRequest("no filter: select by consumer, reason, state, message_id, before or older, or say all=true")
	}
	rate := defaultRate
	if s := q.Get("rate"); s != "" {
		if rate, err = strconv.Atoi(s); err != nil || rate < 1 || rate > maxRate {
			return Job{}, badRequest("rate: must be 1 to %d messages a second, got %q", maxRate, s)
		}
	}
	// A deferred message runs by itself, and may be processed any moment: to hurry
	// it along, or to throw it away, has to be asked for.
	if f.State == "" {
		f.State = inbox.StateParked
	}
	now := time.Now().UTC()
	if f.Before.IsZero() || f.Before.After(now) {
		f.Before = now.Truncate(time.Microsecond)
	}
	j := &job{
		jobs: a.jobs, filter: f, ready: make(chan struct{}),
		Job: Job{
			ID: rand.Text(), Action: action, Filter: describeFilter(f), State: JobRunning,
			Actor: callerOf(r).String(), Why: why, Rate: rate, Before: f.Before, Started: now,
		},
	}
	snap, err := a.jobs.add(j)
	if err != nil {
		return Job{}, err
	}
	defer close(j.ready)
	a.done(r, deed{action: byFilter(action), consumer: f.Consumer, target: snap.Filter, why: why, facts: []any{"run", snap.ID}})
	return snap, nil
}

func byFilter(action string) string {
	if action == actionDiscard {
		return actionDiscardFilter
	}
	return actionReplayFilter
}

func (a *Admin) listJobs(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, http.StatusOK, JobList{Jobs: a.jobs.list()})
}

func (a *Admin) getJob(w http.ResponseWriter, r *http.Request) error {
	j, err := a.jobs.find(r.PathValue("id"))
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, j.snapshot())
}

func (a *Admin) stopJob(w http.ResponseWriter, r *http.Request) error {
	j, err := a.haltJob(r, r.PathValue("id"), whyOf(r, false))
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, j)
}

func (a *Admin) haltJob(r *http.Request, id, why string) (Job, error) {
	j, err := a.jobs.find(id)
	if err != nil {
		return Job{}, err
	}
	if err := j.stop(r.Context()); err != nil {
		return Job{}, err
	}
	snap := j.snapshot()
	a.done(r, deed{action: "stop-" + byFilter(snap.Action), consumer: j.filter.Consumer, target: snap.Filter, why: why})
	return snap, nil
}

func (a *Admin) resumeJob(w http.ResponseWriter, r *http.Request) error {
	j, err := a.restartJob(r, r.PathValue("id"), whyOf(r, false))
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusAccepted, j)
}

func (a *Admin) restartJob(r *http.Request, id, why string) (Job, error) {
	snap, err := a.jobs.resume(id)
	if err != nil {
		return Job{}, err
	}
	a.done(r, deed{action: "resume-" + byFilter(snap.Action), target: snap.Filter, why: why})
	return snap, nil
}
