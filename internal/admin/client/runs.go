package client

import (
	"context"
	"fmt"
	"time"

	"github.com/inboxd/inboxd/internal/admin"
)

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
		if j.Total > 0 {
			p.show("%s", runLine(j))
		}
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
