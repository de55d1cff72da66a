package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/inboxd/inboxd/internal/admin"
	"github.com/inboxd/inboxd/internal/inbox"
)

func parkedReplay(ctx context.Context, env Env, args []string) int {
	c := newCommand(env, "parked replay ID… | FILTER [flags]", `
Makes stored messages due now, with a fresh set of attempts. They go the same
way as any message, with the same Idempotency-Key; what is recorded already is
not forwarded again. Tells what became of each: processed, parked again, or not
tried yet. Exit code 1 says that some came back.

By filter, messages are made due at a bounded rate, no faster than the handler
takes them. Interrupting the command leaves the run going; inboxd parked stop
stops it, and inboxd parked resume lets it go on.`).withJSON().withReason()
	f := c.withFilter()
	all := c.flags.Bool("all", false, "replay all parked messages")
	rate := c.flags.Int("rate", 0, "by filter: at most `N` messages a second (default 100)")
	wait := c.flags.Duration("wait", 10*time.Second, "by ID: how long to wait for what becomes of them; 0 does not")
	detach := c.flags.Bool("detach", false, "by filter: print the run and do not wait for its end")
	ids, code, done := c.parse(args, 0, -1)
	if done {
		return code
	}
	filtered := *f != Filter{} || *all
	if filtered == (len(ids) > 0) {
		return c.usageError("give IDs, or a filter, or --all")
	}
	cl, code := c.connect()
	if cl == nil {
		return code
	}
	if filtered {
		return c.runByFilter(ctx, cl, "replay", *f, *all, *rate, *detach)
	}
	return c.replayIDs(ctx, cl, ids, *wait)
}

// replayed is what became of one message.
type replayed struct {
	ID     string        `json:"id"`
	Result string        `json:"result"` // processed, parked_again, deferred, due
	Parked *admin.Parked `json:"parked,omitempty"`
}

func (c *command) replayIDs(ctx context.Context, cl *Client, ids []string, wait time.Duration) int {
	begin := make([]admin.Parked, len(ids))
	for i, id := range ids {
		p, err := cl.Get(ctx, id)
		if err == nil {
			_, err = cl.Act(ctx, "replay", id, c.why)
		}
		if err != nil {
			return c.fail(fmt.Errorf("%s: %w", id, err))
		}
		begin[i] = p.Parked
	}
	deadline := time.Now().Add(wait)
	results, code := []replayed{}, exitOK
	for i, id := range ids {
		res, err := follow(ctx, cl, id, begin[i], deadline)
		if err != nil {
			return c.fail(err)
		}
		if res.Result == "parked_again" {
			code = exitFailed
		}
		results = append(results, res)
		if !c.json {
			c.sayReplayed(res)
		}
	}
	if c.json {
		c.printJSON(results)
	}
	return code
}

func (c *command) sayReplayed(r replayed) {
	switch r.Result {
	case "processed":
		c.say("%s: processed", r.ID)
	case "parked_again":
		c.say("%s: parked again: %s, last answer %s: %s", r.ID, r.Parked.Reason, status(r.Parked.LastStatus), printable(r.Parked.Error))
	case "deferred":
		c.say("%s: failed, tried again by itself at %s", r.ID, stamp(r.Parked.Due))
	default:
		c.say("%s: due, not done yet", r.ID)
	}
}

// follow waits until a replayed message has left the store, or is back.
func follow(ctx context.Context, cl *Client, id string, was admin.Parked, deadline time.Time) (replayed, error) {
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		p, err := cl.Get(ctx, id)
		switch {
		case errors.Is(err, inbox.ErrNotFound):
			return replayed{ID: id, Result: "processed"}, nil
		case err != nil:
			return replayed{}, err
		case isParked(p.Parked):
			return replayed{id, "parked_again", &p.Parked}, nil
		case !p.LastAttempt.Equal(was.LastAttempt) && p.Due.After(time.Now().Add(time.Second)):
			return replayed{id, "deferred", &p.Parked}, nil
		case time.Now().After(deadline):
			return replayed{id, "due", &p.Parked}, nil
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return replayed{}, ctx.Err()
		}
	}
}

func parkedDiscard(ctx context.Context, env Env, args []string) int {
	c := newCommand(env, "parked discard ID… | FILTER --yes [flags]", `
Deletes stored messages for good. Their IDs are not recorded: when they are
published again, they are processed. Export them first if you may need them.
Without --yes it only says what would be discarded.`).withJSON().withReason()
	f := c.withFilter()
	all := c.flags.Bool("all", false, "discard all stored messages")
	rate := c.flags.Int("rate", 1000, "by filter: at most `N` messages a second")
	yes := c.flags.Bool("yes", false, "do it")
	detach := c.flags.Bool("detach", false, "by filter: print the run and do not wait for its end")
	ids, code, done := c.parse(args, 0, -1)
	if done {
		return code
	}
	filtered := *f != Filter{} || *all
	if filtered == (len(ids) > 0) {
		return c.usageError("give IDs, or a filter, or --all")
	}
	cl, code := c.connect()
	if cl == nil {
		return code
	}
	switch {
	case !*yes && filtered:
		return c.wouldDiscard(ctx, cl, *f)
	case !*yes:
		c.note("%s would be discarded; say --yes to do it", count(len(ids), "message"))
		return exitUsage
	case filtered:
		return c.runByFilter(ctx, cl, "discard", *f, *all, *rate, *detach)
	}
	results := []admin.Done{}
	for _, id := range ids {
		d, err := cl.Act(ctx, "discard", id, c.why)
		if err != nil {
			return c.fail(fmt.Errorf("%s: %w", id, err))
		}
		results = append(results, d)
		if !c.json {
			c.say("%s: discarded", id)
		}
	}
	if c.json {
		return c.printJSON(results)
	}
	return exitOK
}

func (c *command) wouldDiscard(ctx context.Context, cl *Client, f Filter) int {
	n, after := 0, ""
	for {
		l, err := cl.Parked(ctx, f, after, 1000)
		if err != nil {
			return c.fail(err)
		}
		n += len(l.Parked)
		if after = l.Next; after == "" {
			break
		}
	}
	c.note("%s would be discarded; say --yes to do it", count(n, "message"))
	return exitUsage
}

// runByFilter starts a run and follows it to its end.
func (c *command) runByFilter(ctx context.Context, cl *Client, action string, f Filter, all bool, rate int, detach bool) int {
	j, err := cl.Start(ctx, action, f, all, rate, c.why)
	if err != nil {
		return c.fail(err)
	}
	if detach {
		if c.json {
			return c.printJSON(j)
		}
		c.say("run %s: %s of %s", j.ID, j.Action, j.Filter)
		return exitOK
	}
	return c.followRun(ctx, cl, j.ID)
}

const followEvery = 250 * time.Millisecond

func (c *command) followRun(ctx context.Context, cl *Client, id string) int {
	p := newProgress(c.env.Stderr)
	t := time.NewTicker(followEvery)
	defer t.Stop()
	for {
		j, err := cl.Job(ctx, id)
		switch {
		case ctx.Err() != nil:
			p.end()
			c.note("the run goes on; stop it with: inboxd parked stop %s", id)
			return exitFailed
		case err != nil:
			p.end()
			return c.fail(err)
		case j.State != admin.JobRunning:
			p.end()
			return c.ended(j)
		}
		p.show("%s", runLine(j))
		select {
		case <-t.C:
		case <-ctx.Done():
		}
	}
}

func runLine(j admin.Job) string {
	s := fmt.Sprintf("%d of %d", j.Handled, j.Total)
	if secs := time.Since(j.Started).Seconds(); j.State == admin.JobRunning && secs > 1 {
		s += fmt.Sprintf(", %.0f/s", float64(j.Handled)/secs)
	}
	if j.Action == "replay" {
		s += fmt.Sprintf(": %d processed, %d parked again, %d deferred, %d not tried yet", j.Processed, j.CameBack, j.Deferred, j.Waiting)
	}
	if j.Gone > 0 {
		s += fmt.Sprintf(", %d gone before", j.Gone)
	}
	return s
}

func (c *command) ended(j admin.Job) int {
	if c.json {
		c.printJSON(j)
	} else {
		c.say("%s %s: %s", j.Action, j.State, runLine(j))
	}
	switch {
	case j.State == admin.JobFailed:
		c.note("inboxd: %s (resume it with: inboxd parked resume %s)", printable(j.Error), j.ID)
		return exitFailed
	case j.State == admin.JobStopped, j.CameBack > 0:
		return exitFailed
	}
	return exitOK
}

func parkedRuns(ctx context.Context, env Env, args []string) int {
	c := newCommand(env, "parked runs [flags]", "Lists replays and discards by filter since the daemon's start, newest first.").withJSON()
	if _, code, done := c.parse(args, 0, 0); done {
		return code
	}
	cl, code := c.connect()
	if cl == nil {
		return code
	}
	l, err := cl.Jobs(ctx)
	switch {
	case err != nil:
		return c.fail(err)
	case c.json:
		return c.printJSON(l)
	case len(l.Jobs) == 0:
		c.note("no runs since the daemon's start")
		return exitOK
	}
	rows := [][]string{{"RUN", "ACTION", "STATE", "PROGRESS", "STARTED", "WHO", "FILTER"}}
	for _, j := range l.Jobs {
		rows = append(rows, []string{j.ID, j.Action, string(j.State), fmt.Sprintf("%d of %d", j.Handled, j.Total), stamp(j.Started), j.Actor, j.Filter})
	}
	return c.table(rows)
}

func parkedStop(ctx context.Context, env Env, args []string) int {
	c := newCommand(env, "parked stop RUN [flags]", "Stops a replay or discard by filter. Messages that it made due stay due.").withJSON().withReason()
	rest, code, done := c.parse(args, 1, 1)
	if done {
		return code
	}
	cl, code := c.connect()
	if cl == nil {
		return code
	}
	j, err := cl.StopJob(ctx, rest[0], c.why)
	if err != nil {
		return c.fail(err)
	}
	if c.json {
		return c.printJSON(j)
	}
	c.say("%s stopped: %s", j.Action, runLine(j))
	return exitOK
}

func parkedResume(ctx context.Context, env Env, args []string) int {
	c := newCommand(env, "parked resume RUN [flags]", "Lets a stopped or failed replay or discard by filter go on where it stopped.").withJSON().withReason()
	detach := c.flags.Bool("detach", false, "do not wait for its end")
	rest, code, done := c.parse(args, 1, 1)
	if done {
		return code
	}
	cl, code := c.connect()
	if cl == nil {
		return code
	}
	j, err := cl.ResumeJob(ctx, rest[0], c.why)
	if err != nil {
		return c.fail(err)
	}
	if *detach {
		return c.printJSON(j)
	}
	return c.followRun(ctx, cl, j.ID)
}
