package admin

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
)

func (d *desk) job(t *testing.T, id string) Job {
	t.Helper()
	return decode[Job](t, d.want(t, 200, "GET", "/api/jobs/"+id, "").body)
}

func (d *desk) waitJob(t *testing.T, id string) Job {
	t.Helper()
	waitFor(t, "the run to end", func() bool { return d.job(t, id).State != JobRunning })
	return d.job(t, id)
}

func TestReplayByFilterCountsWhatBecameOfEach(t *testing.T) {
	t.Parallel()
	d := open(t)
	n := 0
	d.store.Handler = func(*inbox.ParkedMessage) inbox.ParkedState {
		n++
		return []inbox.ParkedState{"", inbox.StateParked, "", inbox.StateDeferred, ""}[n%5]
	}
	d.park(t, 1250)
	other := parkedMessage("other", "x")
	other.Reason = inbox.Mismatch
	if err := d.store.Park(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	j := decode[Job](t, d.want(t, 202, "POST", "/api/parked/replay?consumer=billing&reason=rejected&rate=10000&why=fixed", "").body)
	got := d.waitJob(t, j.ID)
	if got.State != JobDone || got.Total != 1250 || got.Handled != 1250 || got.Processed != 750 || got.CameBack != 250 || got.Deferred != 250 || got.Waiting != 0 {
		t.Errorf("got %+v, want 1250 handled: 750 processed, 250 back, 250 deferred", got)
	}
	if m, err := d.store.GetParked(t.Context(), other.ID); err != nil || m.Replays != 0 {
		t.Errorf("got %+v, %v, want the message outside the filter untouched", m, err)
	}
	if e := d.lastDeed(t); e.Action != "replay-by-filter-done" || !strings.Contains(e.Reason, "750 processed") {
		t.Errorf("got %+v, want the end with its counts", e)
	}
}

func TestReplayDoesNotReplayWhatCameBack(t *testing.T) {
	t.Parallel()
	d := open(t)
	replays := 0
	d.store.Handler = func(*inbox.ParkedMessage) inbox.ParkedState { replays++; return inbox.StateParked }
	d.park(t, 30)
	j := decode[Job](t, d.want(t, 202, "POST", "/api/parked/replay?all=true&rate=10000", "").body)
	if got := d.waitJob(t, j.ID); got.CameBack != 30 || replays != 30 {
		t.Errorf("got %+v and %d replays, want 30 back and 30 replays", got, replays)
	}
	// A second run with the same bound, as after a restart, finds none of them.
	q := "/api/parked/replay?all=true&before=" + got30(j)
	j = decode[Job](t, d.want(t, 202, "POST", q, "").body)
	if got := d.waitJob(t, j.ID); got.Total != 0 {
		t.Errorf("got %+v, want nothing selected", got)
	}
}

func got30(j Job) string { return strings.ReplaceAll(j.Before.Format(time.RFC3339Nano), "+", "%2B") }

func TestReplayCanBeStoppedAndResumed(t *testing.T) {
	t.Parallel()
	d := open(t)
	d.store.Handler = func(*inbox.ParkedMessage) inbox.ParkedState { return "" }
	d.park(t, 300)
	j := decode[Job](t, d.want(t, 202, "POST", "/api/parked/replay?consumer=billing&rate=200", "").body)
	waitFor(t, "the first replay", func() bool { return d.job(t, j.ID).Handled > 3 })
	stopped := decode[Job](t, d.want(t, 200, "DELETE", "/api/jobs/"+j.ID, "").body)
	left := d.store.Count()
	if stopped.State != JobStopped || left == 0 || left+stopped.Handled != 300 {
		t.Fatalf("got %+v and %d left, want it stopped on its way", stopped, left)
	}
	d.want(t, 409, "DELETE", "/api/jobs/"+j.ID, "")
	d.want(t, 202, "POST", "/api/jobs/"+j.ID+"/resume", "")
	if got := d.waitJob(t, j.ID); got.Handled != 300 || got.Processed != 300 || d.store.Count() != 0 {
		t.Errorf("got %+v and %d left, want all 300 processed, each once", got, d.store.Count())
	}
	d.want(t, 409, "POST", "/api/jobs/"+j.ID+"/resume", "")
}

func TestReplayKeepsItsRate(t *testing.T) {
	t.Parallel()
	d := open(t)
	d.store.Handler = func(*inbox.ParkedMessage) inbox.ParkedState { return "" }
	d.park(t, 20)
	begin := time.Now()
	j := decode[Job](t, d.want(t, 202, "POST", "/api/parked/replay?consumer=billing&rate=100", "").body)
	d.waitJob(t, j.ID)
	if took := time.Since(begin); took < 150*time.Millisecond {
		t.Errorf("got 20 messages in %s, want at most 100 a second", took)
	}
}

func TestReplayWaitsForAHandlerThatIsSlow(t *testing.T) {
	t.Parallel()
	d := open(t)
	d.park(t, jobWindow+200) // nobody takes them up
	j := decode[Job](t, d.want(t, 202, "POST", "/api/parked/replay?consumer=billing&rate=10000", "").body)
	waitFor(t, "the window to fill", func() bool { return d.job(t, j.ID).Waiting == jobWindow })
	time.Sleep(20 * time.Millisecond)
	if got := d.job(t, j.ID); got.Handled != jobWindow || got.State != JobRunning {
		t.Errorf("got %+v, want it to wait at %d", got, jobWindow)
	}
	d.store.Mu.Lock()
	clear(d.store.Parked)
	d.store.Mu.Unlock()
	if got := d.waitJob(t, j.ID); got.Processed != jobWindow {
		t.Errorf("got %+v, want the window processed", got)
	}
}

func TestDiscardByFilterAuditsEachMessage(t *testing.T) {
	t.Parallel()
	d := open(t)
	d.park(t, 12)
	d.want(t, 400, "POST", "/api/parked/discard", "")
	j := decode[Job](t, d.want(t, 202, "POST", "/api/parked/discard?consumer=billing&rate=10000&why=tests", "").body)
	if got := d.waitJob(t, j.ID); got.Handled != 12 || d.store.Count() != 0 {
		t.Errorf("got %+v and %d left, want all discarded", got, d.store.Count())
	}
	n := 0
	for _, e := range d.store.Deeds {
		if e.Action == "discard" && e.Reason == "tests" {
			n++
		}
	}
	if n != 12 {
		t.Errorf("got %d discards in the audit table, want 12", n)
	}
}

// A deferred message is none of those that nobody wants any more.
func TestDiscardByFilterSparesDeferredMessages(t *testing.T) {
	t.Parallel()
	d := open(t)
	ids := d.park(t, 3)
	d.store.Mu.Lock()
	d.store.Parked[ids[0]].State = inbox.StateDeferred
	d.store.Mu.Unlock()
	for _, step := range []struct {
		query string
		left  int
	}{{"consumer=billing", 1}, {"consumer=billing&state=deferred", 0}} {
		j := decode[Job](t, d.want(t, 202, "POST", "/api/parked/discard?rate=10000&why=tests&"+step.query, "").body)
		if got := d.waitJob(t, j.ID); got.State != JobDone || d.store.Count() != step.left {
			t.Errorf("%s: got %s and %d left, want done and %d", step.query, got.State, d.store.Count(), step.left)
		}
	}
}

func TestFailedRunSaysWhyAndCanBeResumed(t *testing.T) {
	t.Parallel()
	d := open(t)
	d.store.Handler = func(*inbox.ParkedMessage) inbox.ParkedState { return "" }
	d.park(t, 50)
	j := decode[Job](t, d.want(t, 202, "POST", "/api/parked/replay?consumer=billing&rate=100", "").body)
	waitFor(t, "the first replay", func() bool { return d.job(t, j.ID).Handled > 0 })
	d.store.Fail(errStore)
	if got := d.waitJob(t, j.ID); got.State != JobFailed || !strings.Contains(got.Error, "disk is full") {
		t.Errorf("got %+v, want failed, and why", got)
	}
	d.store.Fail(nil)
	d.want(t, 202, "POST", "/api/jobs/"+j.ID+"/resume", "")
	if got := d.waitJob(t, j.ID); got.State != JobDone || d.store.Count() != 0 {
		t.Errorf("got %+v and %d left, want done", got, d.store.Count())
	}
}

func TestTooManyRunsAreRefused(t *testing.T) {
	t.Parallel()
	d := open(t)
	d.park(t, 100)
	for i := range maxRunning {
		d.want(t, 202, "POST", fmt.Sprintf("/api/parked/replay?consumer=billing&rate=1&why=%d", i), "")
	}
	d.want(t, 409, "POST", "/api/parked/replay?consumer=billing&rate=1", "")
	if l := decode[JobList](t, d.want(t, 200, "GET", "/api/jobs", "").body); len(l.Jobs) != maxRunning {
		t.Errorf("got %d runs, want %d", len(l.Jobs), maxRunning)
	}
}
