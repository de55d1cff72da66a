package client

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/inboxd/inboxd/internal/admin"
)

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// Env is what a command needs of the outside.
type Env struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Connect finds the daemon: by its configuration file, or by address. An
	// error is one of usage or configuration.
	Connect func(Where) (*Client, error)
}

// Where is what the flags say about where the daemon is. Empty fields were not
// given.
type Where struct {
	ConfigFile   string
	AdminURL     string
	MetricsURL   string
	TokenFile    string
	NeedsMetrics bool // the command speaks to the metrics side
}

// command is one command's flags, at work.
type command struct {
	env   Env
	flags *flag.FlagSet
	where Where
	json  bool
	why   string
	help  func()
}

// newCommand begins a command: name and arguments as in its usage line, and
// what it does.
func newCommand(env Env, usage, about string) *command {
	c := &command{env: env, flags: flag.NewFlagSet(usage, flag.ContinueOnError)}
	c.flags.SetOutput(io.Discard) // errors are written once, by us
	c.flags.StringVar(&c.where.ConfigFile, "c", "", "configuration `FILE` of the daemon: says where it listens, and its token file (default: $INBOXD_CONFIG)")
	c.flags.StringVar(&c.where.AdminURL, "admin", "", "`URL` of the daemon's admin side, instead of -c (default: $INBOXD_ADMIN)")
	c.flags.StringVar(&c.where.TokenFile, "token-file", "", "`FILE` with the admin token, where -c does not name it")
	c.flags.Usage = func() {} // the package prints it after every mistake too
	c.help = func() {
		fmt.Fprintf(env.Stdout, "Usage: inboxd %s\n\n%s\n\nFlags:\n", usage, strings.TrimSpace(about))
		c.flags.SetOutput(env.Stdout)
		c.flags.PrintDefaults()
		c.flags.SetOutput(io.Discard)
	}
	return c
}

func (c *command) withJSON() *command {
	c.flags.BoolVar(&c.json, "json", false, "print the API's answer as JSON")
	return c
}

func (c *command) withReason() *command {
	c.flags.StringVar(&c.why, "reason", "", "`TEXT` for the audit table: why you do this")
	return c
}

// filter adds the flags that select stored messages. What a message was parked
// for is its cause here, because --reason is why you act.
func (c *command) withFilter() *Filter {
	f := &Filter{}
	c.flags.StringVar(&f.Consumer, "consumer", "", "messages of the consumer `NAME`")
	c.flags.StringVar(&f.Reason, "cause", "", "messages parked for a `REASON`: missing_id, mismatch, rejected, attempts, too_large, no_evidence, delivery_limit")
	c.flags.StringVar(&f.State, "state", "", "messages in the `STATE` parked or deferred")
	c.flags.StringVar(&f.Older, "older", "", "messages parked longer ago than a `DURATION` such as 36h or 7d")
	c.flags.StringVar(&f.Before, "before", "", "messages parked before a `TIME` such as 2006-01-02T15:04:05Z")
	c.flags.StringVar(&f.MessageID, "id", "", "messages with this message `ID`, in canonical form")
	c.flags.StringVar(&f.Raw, "raw-id", "", "messages with this message `ID`, as the producer wrote it")
	return f
}

// parse reads flags and arguments in any order. done is true where the command
// has ended, with a code.
func (c *command) parse(args []string, least, most int) (rest []string, code int, done bool) {
	for {
		err := c.flags.Parse(args)
		if errors.Is(err, flag.ErrHelp) {
			c.help()
			return nil, exitOK, true
		}
		if err != nil {
			return nil, c.usageError("%v", err), true
		}
		args = c.flags.Args()
		if len(args) == 0 {
			break
		}
		rest, args = append(rest, args[0]), args[1:]
	}
	if len(rest) < least || most >= 0 && len(rest) > most {
		return nil, c.usageError("wrong number of arguments"), true
	}
	return rest, 0, false
}

func (c *command) usageError(format string, args ...any) int {
	fmt.Fprintf(c.env.Stderr, "inboxd: "+format+"\nUsage: inboxd %s\nTry --help.\n", append(args, c.flags.Name())...)
	return exitUsage
}

// connect finds the daemon; a nil Client comes with a code.
func (c *command) connect() (*Client, int) {
	cl, err := c.env.Connect(c.where)
	if err != nil {
		fmt.Fprintf(c.env.Stderr, "inboxd: %v\n", err)
		return nil, exitUsage
	}
	if cl.Actor == "" {
		cl.Actor = actor()
	}
	return cl, 0
}

// actor is who sits at this command line.
func actor() string {
	name := os.Getenv("SUDO_USER")
	for _, v := range []string{"USER", "LOGNAME"} {
		if name == "" {
			name = os.Getenv(v)
		}
	}
	if name == "" {
		name = fmt.Sprintf("uid %d", os.Getuid())
	}
	return name
}

// fail writes err and returns the code: 2 where trying again as it stands
// cannot help, and otherwise 1.
func (c *command) fail(err error) int {
	fmt.Fprintf(c.env.Stderr, "inboxd: %v\n", err)
	var p *admin.Problem
	if errors.As(err, &p) {
		switch p.Status {
		case http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestEntityTooLarge:
			return exitUsage
		}
	}
	return exitFailed
}

// say writes one line to standard output.
func (c *command) say(format string, args ...any) {
	fmt.Fprintf(c.env.Stdout, format+"\n", args...)
}

// note writes one line to standard error.
func (c *command) note(format string, args ...any) {
	fmt.Fprintf(c.env.Stderr, format+"\n", args...)
}

// oneOf runs the subcommand that args name.
func oneOf(ctx context.Context, env Env, args []string, usage string, subs map[string]func(context.Context, Env, []string) int) int {
	if len(args) == 0 {
		fmt.Fprint(env.Stderr, usage)
		return exitUsage
	}
	switch args[0] {
	case "-h", "-help", "--help", "help":
		fmt.Fprint(env.Stdout, usage)
		return exitOK
	}
	sub, ok := subs[args[0]]
	if !ok {
		fmt.Fprintf(env.Stderr, "inboxd: there is no command %q here\n\n%s", args[0], usage)
		return exitUsage
	}
	return sub(ctx, env, args[1:])
}
