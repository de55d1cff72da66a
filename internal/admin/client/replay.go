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
