package client

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/inboxd/inboxd/internal/admin"
)

const aboutID = `
ID is the message ID in canonical form, as logs, tables and the page show it;
with --raw, as the producer wrote it. CONSUMER may be left out where the daemon
has one.`

// consumerAndID reads the arguments [CONSUMER] ID.
func (c *command) consumerAndID(ctx context.Context, cl *Client, rest []string, raw bool) (string, ID, error) {
	if len(rest) == 2 {
		return rest[0], ID{rest[1], raw}, nil
	}
	s, err := cl.Status(ctx)
	if err != nil {
		return "", ID{}, err
	}
	var names []string
	for _, consumer := range s.Consumers {
		names = append(names, consumer.Name)
	}
	if len(names) != 1 {
		return "", ID{}, &admin.Problem{
			Title: "Which consumer?", Status: 400,
			Detail: "the daemon has " + strings.Join(names, ", ") + "; name one before the ID",
		}
	}
	return names[0], ID{rest[0], raw}, nil
}

// Show is `inboxd show`.
func Show(ctx context.Context, env Env, args []string) int {
	c := newCommand(env, "show [CONSUMER] ID [flags]", `
Tells what happened to a message: processed, parked, deferred, in flight, or
unknown; and what is not kept. Exit code 1 says that nothing is known of it.`+"\n"+aboutID).withJSON()
	raw := c.flags.Bool("raw", false, "ID is as the producer wrote it")
	rest, code, done := c.parse(args, 1, 2)
	if done {
		return code
	}
	cl, code := c.connect()
	if cl == nil {
		return code
	}
	consumer, id, err := c.consumerAndID(ctx, cl, rest, *raw)
	if err != nil {
		return c.fail(err)
	}
	l, err := cl.Message(ctx, consumer, id)
	if err != nil {
		return c.fail(err)
	}
	if c.json {
		c.printJSON(l)
	} else {
		c.showLedger(l)
	}
	if l.Verdict == "unknown" {
		return exitFailed
	}
	return exitOK
}

func (c *command) showLedger(l admin.MessageLedger) {
	c.facts("Consumer", l.Consumer, "Message ID", string(l.MessageID), "Verdict", strings.ReplaceAll(l.Verdict, "_", " "))
	c.say("%s", l.Words)
	if l.Record != nil {
		c.say("")
		c.facts("Recorded", stamp(l.Record.RecordedAt), "Fingerprint", l.Record.Fingerprint)
	}
	for _, f := range l.InFlight {
		c.say("")
		c.facts("In flight since", stamp(f.Since), "Waits for", f.State, "Requests so far", number(f.Requests))
	}
	for _, p := range l.Stored {
		c.say("")
		c.facts("Stored as", p.ID, "State", string(p.State), "Reason", p.Reason, "Why", p.Error,
			"Attempts", fmt.Sprintf("%d of %d requests, replayed %d times", p.Attempts, p.Requests, p.Replays),
			"Last answer", status(p.LastStatus), "First received", stamp(p.FirstReceived), "Last attempt", stamp(p.LastAttempt), "Due", stamp(p.Due))
	}
	if len(l.Audit) > 0 {
		c.say("\nWhat people did:")
		c.table(auditRows(l.Audit))
	}
	c.say("\nNot kept:")
	for _, s := range l.NotKept {
		c.say("  - %s", s)
	}
}

// Forget is `inboxd forget`.
func Forget(ctx context.Context, env Env, args []string) int {
	c := newCommand(env, "forget [CONSUMER] ID [flags]", `
Deletes the record of a message, so that it can be processed again on purpose.
The handler gets the same Idempotency-Key again.`+"\n"+aboutID).withJSON().withReason()
	raw := c.flags.Bool("raw", false, "ID is as the producer wrote it")
	rest, code, done := c.parse(args, 1, 2)
	if done {
		return code
	}
	cl, code := c.connect()
	if cl == nil {
		return code
	}
	consumer, id, err := c.consumerAndID(ctx, cl, rest, *raw)
	if err != nil {
		return c.fail(err)
	}
	r, err := cl.Forget(ctx, consumer, id, c.why)
	if err != nil {
		return c.fail(err)
	}
	return c.recordDone(r)
}

// Record is `inboxd record`.
func Record(ctx context.Context, env Env, args []string) int {
	c := newCommand(env, "record [CONSUMER] ID [flags]", `
Marks a message as processed, by hand: every delivery of it is acked without a
request from now on.`+"\n"+aboutID).withJSON().withReason()
	raw := c.flags.Bool("raw", false, "ID is as the producer wrote it")
	fp := c.flags.String("fingerprint", "", "fingerprint of the body, 16 `HEX` digits; without it every body matches")
	rest, code, done := c.parse(args, 1, 2)
	if done {
		return code
	}
	cl, code := c.connect()
	if cl == nil {
		return code
	}
	consumer, id, err := c.consumerAndID(ctx, cl, rest, *raw)
	if err != nil {
		return c.fail(err)
	}
	r, err := cl.Record(ctx, consumer, id, *fp, c.why)
	if err != nil {
		return c.fail(err)
	}
	return c.recordDone(r)
}

func (c *command) recordDone(r admin.Record) int {
	if c.json {
		return c.printJSON(r)
	}
	c.say("%s %s: %s", r.Consumer, r.MessageID, strings.ReplaceAll(r.Result, "_", " "))
	return exitOK
}

// idsAtOnce is how many IDs go into one request: progress is told after each,
// and an import that broke off can be repeated.
const idsAtOnce = 5000

// ImportIDs is `inboxd import-ids`.
func ImportIDs(ctx context.Context, env Env, args []string) int {
	c := newCommand(env, "import-ids CONSUMER FILE [flags]", `
Records the message IDs in FILE, one a line, as processed: at cut-over from
another consumer onto a live queue, so that what that one has done is not done
again. FILE may be - for standard input. IDs are taken as the producer writes
them, spaces included; empty lines are skipped. Repeating an import is safe.`).withJSON().withReason()
	canonical := c.flags.Bool("canonical", false, "the IDs are in canonical form")
	rest, code, done := c.parse(args, 2, 2)
	if done {
		return code
	}
	cl, code := c.connect()
	if cl == nil {
		return code
	}
	in, err := openInput(env, rest[1])
	if err != nil {
		return c.fail(err)
	}
	defer in.Close()
	total, err := c.importIDs(ctx, cl, rest[0], in, *canonical)
	if err != nil {
		c.note("%d recorded and %d known before it failed; repeat the import when it can work", total.Imported, total.Already)
		return c.fail(err)
	}
	total.Done = true
	return c.imported(total, "ID")
}

func (c *command) importIDs(ctx context.Context, cl *Client, consumer string, in io.Reader, canonical bool) (admin.Imported, error) {
	total := admin.Imported{Errors: []admin.LineError{}}
	p := newProgress(c.env.Stderr)
	defer p.end()
	r := bufio.NewReaderSize(in, 1<<20)
	for line := 0; ; {
		chunk, n, err := nextLines(r, idsAtOnce)
		if err != nil {
			return total, err
		}
		if n == 0 {
			return total, nil
		}
		res, err := cl.ImportIDs(ctx, consumer, bytes.NewReader(chunk), canonical, c.why)
		if err != nil {
			return total, err
		}
		total.Lines += res.Lines
		total.Imported += res.Imported
		total.Already += res.Already
		total.Failed += res.Failed
		for _, e := range res.Errors {
			if len(total.Errors) < 100 {
				total.Errors = append(total.Errors, admin.LineError{Line: line + e.Line, Error: e.Error})
			}
		}
		line += n
		p.show("%d lines: %d recorded, %d known", line, total.Imported, total.Already)
	}
}

// nextLines reads up to n lines.
func nextLines(r *bufio.Reader, n int) (chunk []byte, got int, err error) {
	for got < n {
		line, err := r.ReadBytes('\n')
		chunk = append(chunk, line...)
		if len(line) > 0 {
			got++
		}
		if errors.Is(err, io.EOF) {
			return chunk, got, nil
		}
		if err != nil {
			return nil, 0, err
		}
	}
	return chunk, got, nil
}
