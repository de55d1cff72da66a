package client

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/inboxd/inboxd/internal/admin"
)

// Status is `inboxd status`.
func Status(ctx context.Context, env Env, args []string) int {
	c := newCommand(env, "status [flags]", "Shows the daemon's consumers, what keeps them from consuming, and what is stored.").withJSON()
	if _, code, done := c.parse(args, 0, 0); done {
		return code
	}
	cl, code := c.connect()
	if cl == nil {
		return code
	}
	s, err := cl.Status(ctx)
	switch {
	case err != nil:
		return c.fail(err)
	case c.json:
		return c.printJSON(s)
	}
	c.facts("Version", s.Version, "Started", stamp(s.StartedAt), "State", string(s.Life), "Store", storeLine(s.Store), "Parked", s.ParkedError)
	c.say("")
	rows := [][]string{{"CONSUMER", "QUEUE", "STATE", "RATE", "IN FLIGHT", "OLDEST", "BREAKER", "PROCESSED", "DUPLICATES", "PARKED", "DEFERRED"}}
	for _, k := range s.Consumers {
		parked, deferred := storedOf(s.Parked, k.Name)
		state := "consuming"
		if !k.Consuming {
			state = "not consuming"
		}
		rows = append(rows, []string{
			k.Name, k.Queue, state, fmt.Sprintf("%.1f/s", k.Rate), number(k.InFlight), fmt.Sprintf("%.1fs", k.OldestSeconds),
			dash(k.Breaker.State), number(k.Counters.Processed), number(k.Counters.Duplicate), number(parked), number(deferred),
		})
	}
	c.table(rows)
	for _, k := range s.Consumers {
		for _, h := range k.Hindrances {
			c.say("%s: %s since %s: %s", k.Name, h.Hindrance, stamp(h.Since), printable(h.Why))
		}
		if k.Session.Error != "" && !k.Consuming {
			c.say("%s: broker: %s", k.Name, printable(k.Session.Error))
		}
	}
	return exitOK
}

func storeLine(s admin.StoreStatus) string {
	line := s.Kind
	if s.Retention != "" {
		line += ", records kept " + s.Retention
	}
	if !s.OK {
		line += ", does not answer: " + s.Why
	}
	return line
}

func storedOf(counts []admin.ParkedCount, consumer string) (parked, deferred int64) {
	for _, p := range counts {
		switch {
		case p.Consumer != consumer:
		case p.State == "deferred":
			deferred += p.Count
		default:
			parked += p.Count
		}
	}
	return parked, deferred
}

// Pause is `inboxd pause`.
func Pause(ctx context.Context, env Env, args []string) int { return setPaused(ctx, env, args, true) }

// Resume is `inboxd resume`.
func Resume(ctx context.Context, env Env, args []string) int { return setPaused(ctx, env, args, false) }

func setPaused(ctx context.Context, env Env, args []string, paused bool) int {
	usage, about := "resume CONSUMER [flags]", "Lets a paused consumer consume again."
	if paused {
		usage, about = "pause CONSUMER [flags]", `
Keeps a consumer from consuming until it is resumed, across restarts. Requests
in flight finish; what has not started goes back to the queue.`
	}
	c := newCommand(env, usage, about).withJSON().withReason()
	rest, code, done := c.parse(args, 1, 1)
	if done {
		return code
	}
	cl, code := c.connect()
	if cl == nil {
		return code
	}
	d, err := cl.SetPaused(ctx, rest[0], paused, c.why)
	if err != nil {
		return c.fail(err)
	}
	if c.json {
		return c.printJSON(d)
	}
	c.say("%s: %s", d.ID, d.Result)
	return exitOK
}

// Drain is `inboxd drain`.
func Drain(ctx context.Context, env Env, args []string) int {
	c := newCommand(env, "drain [flags]", `
Lets the daemon stop consuming, and waits until nothing is in flight. It goes on
running, so that a preStop hook can call this before anything gets SIGTERM. Exit
code 1 says that it was not drained in time; draining goes on then.`).withJSON().withReason()
	limit := c.flags.Duration("timeout", 0, "how long to wait; without it, as long as the daemon's shutdown_timeout")
	if _, code, done := c.parse(args, 0, 0); done {
		return code
	}
	if *limit < 0 {
		return c.usageError("--timeout must not be negative, got %s", *limit)
	}
	cl, code := c.connect()
	if cl == nil {
		return code
	}
	d, err := cl.Drain(ctx, *limit, c.why)
	if err != nil {
		return c.fail(err)
	}
	if c.json {
		return c.printJSON(d)
	}
	c.say("drained in %s", time.Duration(d.Seconds*float64(time.Second)).Round(time.Millisecond))
	return exitOK
}

// Health is `inboxd health`.
func Health(ctx context.Context, env Env, args []string) int {
	c := newCommand(env, "health [--ready | --consuming] [flags]", `
Asks the daemon whether it is alive; with --ready, whether it has started and
does not drain; with --consuming, whether every consumer consumes. Exit code 0
says yes, 1 no. It speaks to the metrics side and needs no token: for HEALTHCHECK
and probes in an image without a shell.`)
	ready := c.flags.Bool("ready", false, "ask /readyz")
	consuming := c.flags.Bool("consuming", false, "ask /consuming")
	quiet := c.flags.Bool("q", false, "print nothing where the answer is yes")
	c.flags.StringVar(&c.where.MetricsURL, "metrics", "", "`URL` of the daemon's metrics side, instead of -c")
	if _, code, done := c.parse(args, 0, 0); done {
		return code
	}
	endpoint := "livez"
	switch {
	case *ready && *consuming:
		return c.usageError("--ready and --consuming exclude each other")
	case *ready:
		endpoint = "readyz"
	case *consuming:
		endpoint = "consuming"
	}
	c.where.NeedsMetrics = true
	cl, code := c.connect()
	if cl == nil {
		return code
	}
	ok, words, err := cl.Health(ctx, endpoint)
	if err != nil {
		return c.fail(err)
	}
	if !ok {
		c.note("%s", strings.TrimSpace(printableText(string(words))))
		return exitFailed
	}
	if !*quiet {
		c.say("%s", strings.TrimSpace(printableText(string(words))))
	}
	return exitOK
}

// Audit is `inboxd audit`.
func Audit(ctx context.Context, env Env, args []string) int {
	c := newCommand(env, "audit [flags]", "Lists what people did: when, who, what, why; newest first.").withJSON()
	limit := c.flags.Int("limit", 100, "list at most `N` entries, up to 1000")
	if _, code, done := c.parse(args, 0, 0); done {
		return code
	}
	cl, code := c.connect()
	if cl == nil {
		return code
	}
	l, err := cl.Audit(ctx, *limit)
	switch {
	case err != nil:
		return c.fail(err)
	case c.json:
		return c.printJSON(l)
	case len(l.Audit) == 0:
		c.note("nobody has done anything yet")
		return exitOK
	}
	return c.table(auditRows(l.Audit))
}

func auditRows(es []admin.AuditEntry) [][]string {
	rows := [][]string{{"WHEN", "WHO", "WHAT", "CONSUMER", "WHICH", "WHY"}}
	for _, e := range es {
		rows = append(rows, []string{stamp(e.At), e.Actor, e.Action, dash(e.Consumer), shorten(e.Target, 80), e.Reason})
	}
	return rows
}
