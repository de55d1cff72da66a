package client

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/inboxd/inboxd/internal/admin"
	"github.com/inboxd/inboxd/internal/inbox"
)

const parkedUsage = `Usage: inboxd parked COMMAND [flags]

Looks at messages that are kept for a person (parked) or until they are due
(deferred), and does something about them.

  list               list stored messages
  show ID            show one: where it came from, what happened, its body
  replay ID…         send messages the same way again; or by filter
  discard ID…        delete messages for good; or by filter
  export             write whole messages as JSON lines
  import FILE        store exported messages again
  runs               list replays and discards by filter
  stop RUN           stop one
  resume RUN         let a stopped one go on

inboxd parked COMMAND --help tells more.
`

// Parked is `inboxd parked …`.
func Parked(ctx context.Context, env Env, args []string) int {
	return oneOf(ctx, env, args, parkedUsage, map[string]func(context.Context, Env, []string) int{
		"list": parkedList, "show": parkedShow, "replay": parkedReplay, "discard": parkedDiscard,
		"export": parkedExport, "import": parkedImport, "runs": parkedRuns, "stop": parkedStop, "resume": parkedResume,
	})
}

func parkedList(ctx context.Context, env Env, args []string) int {
	c := newCommand(env, "parked list [flags]", "Lists stored messages, oldest first.").withJSON()
	f := c.withFilter()
	c.flags.StringVar(&f.Reason, "reason", "", "the same as --cause")
	limit := c.flags.Int("limit", 100, "list at most `N` messages; 0 lists all")
	after := c.flags.String("after", "", "begin after the message that is stored as `ID`")
	if _, code, done := c.parse(args, 0, 0); done {
		return code
	}
	if *limit < 0 {
		return c.usageError("--limit must be 0 or more, got %d", *limit)
	}
	cl, code := c.connect()
	if cl == nil {
		return code
	}
	list := admin.ParkedList{Parked: []admin.Parked{}, Next: *after}
	for {
		page := 1000
		if *limit > 0 {
			page = min(page, *limit-len(list.Parked))
		}
		l, err := cl.Parked(ctx, *f, list.Next, page)
		if err != nil {
			return c.fail(err)
		}
		list.Parked, list.Next = append(list.Parked, l.Parked...), l.Next
		if l.Next == "" || *limit > 0 && len(list.Parked) >= *limit {
			break
		}
	}
	if c.json {
		return c.printJSON(list)
	}
	if len(list.Parked) == 0 {
		c.note("no stored message matches")
		return exitOK
	}
	rows := [][]string{{"ID", "CONSUMER", "MESSAGE ID", "STATE", "REASON", "ATTEMPTS", "LAST", "PARKED", "DUE"}}
	for _, p := range list.Parked {
		rows = append(rows, []string{
			p.ID, p.Consumer, shorten(idOr(p.MessageID, "-"), 60), string(p.State), dash(p.Reason),
			number(p.Attempts), status(p.LastStatus), stamp(p.ParkedAt), stamp(p.Due),
		})
	}
	if code := c.table(rows); code != exitOK {
		return code
	}
	if list.Next != "" {
		c.note("there are more: --after %s, or --limit 0", list.Next)
	}
	return exitOK
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func status(code int) string {
	if code == 0 {
		return "-"
	}
	return number(code)
}

func parkedShow(ctx context.Context, env Env, args []string) int {
	c := newCommand(env, "parked show ID [flags]", "Shows one stored message. ID is what `inboxd parked list` prints in its first column.").withJSON()
	view := c.flags.String("body", "auto", "print the body as `FORM`: auto, text, json, hex, none, or raw, which prints it alone and byte for byte")
	rest, code, done := c.parse(args, 1, 1)
	if done {
		return code
	}
	switch *view {
	case "auto", "text", "json", "hex", "none", "raw":
	default:
		return c.usageError("--body must be auto, text, json, hex, none or raw, got %q", *view)
	}
	cl, code := c.connect()
	if cl == nil {
		return code
	}
	p, err := cl.Get(ctx, rest[0])
	switch {
	case err != nil:
		return c.fail(err)
	case c.json:
		return c.printJSON(p)
	case *view == "raw":
		if _, err := env.Stdout.Write(p.Body); err != nil {
			return c.fail(err)
		}
		return exitOK
	}
	c.showWhole(p, *view)
	return exitOK
}

func (c *command) showWhole(p admin.ParkedWhole, view string) {
	c.facts(
		"ID", p.ID, "Consumer", p.Consumer, "Message ID", idOr(p.MessageID, "none"), "State", string(p.State), "Reason", p.Reason,
		"Why", p.Error, "Attempts", fmt.Sprintf("%d of %d requests, replayed %d times", p.Attempts, p.Requests, p.Replays),
		"Last answer", status(p.LastStatus), "First received", stamp(p.FirstReceived), "Last attempt", stamp(p.LastAttempt),
		"Parked", stamp(p.ParkedAt), "Due", stamp(p.Due), "Queue", string(p.Queue), "Exchange", string(p.Exchange),
		"Routing key", string(p.RoutingKey), "Fingerprint", p.Fingerprint,
	)
	props, err := json.Marshal(p.Properties)
	if err == nil {
		c.section("Properties", asJSON(props))
	}
	c.section("Headers", asJSON(p.Headers))
	if p.Answer != "" {
		c.section("Last answer's body", printableText(string(p.Answer)))
	}
	if view == "none" {
		return
	}
	c.section(fmt.Sprintf("Body, %d bytes", len(p.Body)), render(p.Body, view))
}

func (c *command) section(title, text string) {
	c.say("\n%s:\n%s", title, strings.TrimRight(text, "\n"))
}

func render(b []byte, view string) string {
	if view == "auto" {
		switch {
		case json.Valid(b):
			view = "json"
		case utf8.Valid(b) && !bytes.ContainsRune(b, 0):
			view = "text"
		default:
			view = "hex"
		}
	}
	switch view {
	case "hex":
		return hex.Dump(b)
	case "json":
		return asJSON(b)
	default:
		return printableText(string(b))
	}
}

func asJSON(b []byte) string {
	var out bytes.Buffer
	if json.Indent(&out, b, "", "  ") != nil {
		return printableText(string(b))
	}
	return printableText(out.String())
}

func parkedExport(ctx context.Context, env Env, args []string) int {
	c := newCommand(env, "parked export [flags]", `
Writes whole messages as JSON lines to standard output: what inboxd parked
import takes. The messages stay stored. Exit code 1 says that the export is not
complete.`).withReason()
	f := c.withFilter()
	if _, code, done := c.parse(args, 0, 0); done {
		return code
	}
	cl, code := c.connect()
	if cl == nil {
		return code
	}
	n, err := cl.Export(ctx, *f, c.why, env.Stdout)
	if err != nil {
		return c.fail(err)
	}
	c.note("%s exported", count(n, "message"))
	return exitOK
}

func parkedImport(ctx context.Context, env Env, args []string) int {
	c := newCommand(env, "parked import FILE [flags]", `
Stores exported messages again, from FILE or, where it is -, from standard
input. A message that is stored already (same consumer, message ID and body) is
not kept twice; messages without an ID always are.`).withJSON().withReason()
	park := c.flags.Bool("park", false, "park deferred messages too, instead of letting them run when due")
	rest, code, done := c.parse(args, 1, 1)
	if done {
		return code
	}
	cl, code := c.connect()
	if cl == nil {
		return code
	}
	in, err := openInput(env, rest[0])
	if err != nil {
		return c.fail(err)
	}
	defer in.Close()
	res, err := cl.Import(ctx, in, *park, c.why)
	if err != nil {
		return c.fail(err)
	}
	return c.imported(res, "message")
}

func openInput(env Env, name string) (io.ReadCloser, error) {
	if name == "-" {
		return io.NopCloser(env.Stdin), nil
	}
	return os.Open(name)
}

// imported tells how an import went; a line that failed makes it fail.
func (c *command) imported(res admin.Imported, what string) int {
	if c.json {
		c.printJSON(res)
	} else {
		c.say("%s imported, %d already there, %d of %d lines failed", count(res.Imported, what), res.Already, res.Failed, res.Lines)
		for _, e := range res.Errors {
			c.note("line %d: %s", e.Line, printable(e.Error))
		}
	}
	if res.Failed > 0 {
		return exitFailed
	}
	return exitOK
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func isParked(p admin.Parked) bool { return p.State == inbox.StateParked }
