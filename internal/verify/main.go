package verify

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"text/tabwriter"
	"time"
)

const usage = `usage: inboxd verify [flags] URL

Proves that the handler at URL has one effect per message: sends what inboxd
would send when things go wrong, and counts the effects through a view that you
name. Use a test environment: the effects are real. No broker is needed.

A sample message, with {{id}} and {{n}} where messages differ:
  --message FILE or --body TEMPLATE
A view of the effect, best a number that grows by one, best of one message:
  --sql DSN --query SQL    e.g. select count(*) from orders where order_id = {{id}}
  --http URL               a number, a JSON array (its length), or a text; 404 is none
  --command CMD            what it prints, as above

Exit code: 0 every case passed (or was skipped), 1 a case failed, 2 usage, or the
handler or the view cannot be reached.

flags:
`

type options struct {
	url, message, body, contentType, idKind, consumer string
	sql, query, http, pointer, command                string
	tokenFile, caFile, key                            string
	headers                                           headerFlags
	timeout                                           time.Duration
	settings
	service service
	json    bool
}

type headerFlags []string

func (h *headerFlags) String() string     { return strings.Join(*h, ", ") }
func (h *headerFlags) Set(s string) error { *h = append(*h, s); return nil }

// errUsage means that the usage was printed already.
var errUsage = errors.New("usage")

func parse(args []string, stderr io.Writer) (*options, error) {
	o := new(options)
	fs := flag.NewFlagSet("inboxd verify", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() { fmt.Fprint(stderr, usage); fs.PrintDefaults() }
	fs.StringVar(&o.message, "message", "", "`file` with a sample body")
	fs.StringVar(&o.body, "body", "", "the sample body itself, a `template`")
	fs.StringVar(&o.contentType, "content-type", "application/json", "content `type` of the sample")
	fs.StringVar(&o.idKind, "id", idUUIDv7, "`kind` of message IDs: uuidv7 or text")
	fs.StringVar(&o.consumer, "consumer", "verify", "`name` sent as Inbox-Consumer")
	fs.StringVar(&o.key, "idempotency-key", "raw", "form of Idempotency-Key: raw or quoted, as forward.idempotency_key")
	fs.Var(&o.headers, "header", "one more header of every request, `NAME:VALUE`; may be repeated")
	fs.StringVar(&o.tokenFile, "token-file", "", "`file` with a bearer token for the handler")
	fs.StringVar(&o.caFile, "ca-file", "", "`file` with the CA of an https handler")
	fs.StringVar(&o.sql, "sql", "", "PostgreSQL `URL` for --query")
	fs.StringVar(&o.query, "query", "", "`SQL` that shows the effect; {{id}} and {{n}} become parameters")
	fs.StringVar(&o.http, "http", "", "`URL` that shows the effect")
	fs.StringVar(&o.pointer, "json-pointer", "", "where in the JSON of --http to look, e.g. /total")
	fs.StringVar(&o.command, "command", "", "shell `command` that prints the effect")
	fs.IntVar(&o.copies, "copies", 10, "copies sent at once")
	fs.IntVar(&o.rounds, "rounds", 3, "how often to repeat what depends on timing")
	fs.IntVar(&o.attempts, "attempts", 10, "requests until a 2xx must have come")
	fs.DurationVar(&o.timeout, "timeout", 30*time.Second, "time for an answer")
	fs.DurationVar(&o.shortTimeout, "short-timeout", 0, "the time-out that is shorter than the handler; 0: half of what the first message took")
	fs.DurationVar(&o.lag, "lag", 0, "how late the view may show an effect; 0: it must be there when the 2xx is")
	fs.DurationVar(&o.wait, "wait", 3*time.Second, "how long to wait for an effect before it counts as absent")
	fs.DurationVar(&o.quiet, "quiet", 200*time.Millisecond, "how long to look for effects too many")
	fs.StringVar(&o.service.command, "restart-cmd", "", "shell `command` that restarts the service, or starts it where --pid or --pid-file names what to kill; it must return")
	fs.IntVar(&o.service.pid, "pid", 0, "`process` to kill with SIGKILL, once; negative: its group")
	fs.StringVar(&o.service.pidFile, "pid-file", "", "`file` with the process to kill, read before each kill")
	fs.DurationVar(&o.service.wait, "restart-wait", 30*time.Second, "how long the service may take to come back")
	fs.BoolVar(&o.json, "json", false, "print JSON")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil, err
		}
		return nil, errUsage
	}
	if fs.NArg() != 1 {
		return nil, fmt.Errorf("want one URL, got %d arguments; flags come before it", fs.NArg())
	}
	o.url = fs.Arg(0)
	return o, o.validate()
}

func (o *options) validate() error {
	var errs []error
	check := func(ok bool, text string) {
		if !ok {
			errs = append(errs, errors.New(text))
		}
	}
	check((o.message == "") != (o.body == ""), "want a sample: --message FILE or --body TEMPLATE")
	views := 0
	for _, v := range []string{o.sql, o.http, o.command} {
		if v != "" {
			views++
		}
	}
	check(views == 1, "want one view of the effect: --sql with --query, --http, or --command")
	check((o.sql == "") == (o.query == ""), "--sql and --query go together")
	check(o.pointer == "" || o.http != "" && strings.HasPrefix(o.pointer, "/"), "--json-pointer starts with / and goes with --http")
	check(o.idKind == idUUIDv7 || o.idKind == idText, "--id must be uuidv7 or text")
	check(o.key == "raw" || o.key == "quoted", "--idempotency-key must be raw or quoted")
	check(o.copies >= 2 && o.rounds >= 1 && o.attempts >= 1, "--copies must be at least 2, --rounds and --attempts at least 1")
	check(o.service.pid == 0 || o.service.pidFile == "", "--pid or --pid-file, not both")
	for _, h := range o.headers {
		check(strings.Contains(h, ":"), fmt.Sprintf("--header %q: want NAME:VALUE", h))
	}
	return errors.Join(errs...)
}

// Main is the command `inboxd verify`. It returns the exit code.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case errors.Is(err, errUsage):
		return 2
	case err != nil:
		fmt.Fprintf(stderr, "inboxd verify: %v\n\n`inboxd verify -h` tells more\n", err)
		return 2
	}
	r, err := o.runner(ctx)
	if err != nil {
		fmt.Fprintf(stderr, "inboxd verify: %v\n", err)
		return 2
	}
	defer r.scale.view.close()
	var cases []*Case
	err = r.target.reachable(ctx)
	if err == nil {
		err = r.run(ctx, func(c *Case) {
			cases = append(cases, c)
			if !o.json {
				fmt.Fprintf(stderr, "%s: %s\n", c.Name, c.Result)
			}
		})
	}
	if o.json {
		printJSON(stdout, o.url, cases, err)
	} else if len(cases) > 0 {
		printTable(stdout, cases)
	}
	if err != nil {
		fmt.Fprintf(stderr, "inboxd verify: %v\n", err)
		return 2
	}
	for _, c := range cases {
		if c.Result == Fail {
			return 1
		}
	}
	return 0
}

func (o *options) runner(ctx context.Context) (*runner, error) {
	t, err := newTarget(o.url, o.caFile)
	if err != nil {
		return nil, err
	}
	t.consumer, t.timeout, t.quoted = o.consumer, o.timeout, o.key == "quoted"
	t.header = http.Header{"Content-Type": {o.contentType}, "User-Agent": {"inboxd-verify"}}
	if o.tokenFile != "" {
		token, err := os.ReadFile(o.tokenFile)
		if err != nil {
			return nil, err
		}
		t.header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	for _, h := range o.headers {
		name, value, _ := strings.Cut(h, ":")
		t.header.Add(strings.TrimSpace(name), strings.TrimSpace(value))
	}
	sample := o.body
	if o.message != "" {
		b, err := os.ReadFile(o.message)
		if err != nil {
			return nil, err
		}
		sample = string(b)
	}
	r := &runner{settings: o.settings, target: t, mint: newMint(sample, o.idKind)}
	if o.service.given() {
		r.service = &o.service
	}
	v, err := o.view(ctx)
	r.scale = &scale{view: v}
	return r, err
}

func (o *options) view(ctx context.Context) (view, error) {
	switch {
	case o.sql != "":
		return newSQLView(ctx, o.sql, o.query)
	case o.http != "":
		return &httpView{raw: o.http, pointer: o.pointer}, nil
	default:
		return &commandView{raw: o.command}, nil
	}
}

func printTable(w io.Writer, cases []*Case) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "CASE\tREQUESTS\tANSWERS\tEFFECTS\tWANT\tRESULT")
	for _, c := range cases {
		if c.Result == Skip {
			fmt.Fprintf(tw, "%s\t-\t-\t-\t-\tskip\n", c.Name)
			continue
		}
		fmt.Fprintf(tw, "%s\t%d\t%s\t%s\t%s\t%s\n", c.Name, c.Requests, c.Answers, c.Effects, c.Want, c.Result)
	}
	_ = tw.Flush()
	for _, c := range cases {
		switch c.Result {
		case Fail:
			fmt.Fprintf(w, "\nFAIL %s: %s.\n  remedy: %s.\n", c.Name, c.Why, c.Remedy)
		case Skip:
			fmt.Fprintf(w, "\nskip %s: %s.\n", c.Name, c.Why)
		case Pass:
			if c.Note != "" {
				fmt.Fprintf(w, "\nnote %s: %s.\n", c.Name, c.Note)
			}
		}
	}
}

func printJSON(w io.Writer, url string, cases []*Case, err error) {
	out := struct {
		URL   string  `json:"url"`
		OK    bool    `json:"ok"`
		Error string  `json:"error,omitempty"`
		Cases []*Case `json:"cases"`
	}{URL: url, OK: err == nil, Cases: cases}
	if err != nil {
		out.Error = err.Error()
	}
	for _, c := range cases {
		out.OK = out.OK && c.Result != Fail
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(out)
}
