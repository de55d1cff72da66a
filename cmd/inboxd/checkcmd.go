package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/inboxd/inboxd/internal/config"
	"github.com/inboxd/inboxd/internal/consumer"
	"github.com/inboxd/inboxd/internal/forward"
	"github.com/inboxd/inboxd/internal/inbox"
	"github.com/inboxd/inboxd/internal/store"
	"github.com/inboxd/inboxd/internal/store/postgres"
	"github.com/inboxd/inboxd/internal/store/shared"
	"github.com/inboxd/inboxd/internal/store/sqlite"
)

func runCheck(ctx context.Context, env environment, args []string) int {
	fs := env.flags("check", "-c FILE", `Parses and validates the configuration, then connects to the broker, the store
and the handler and examines them. Nothing is consumed and nothing is sent to
the handler but its health URL; the store is left as it is. Exit code: 0 all
well, 1 something outside is wrong, 2 the configuration is wrong.`)
	path := configFlag(fs)
	offline := fs.Bool("offline", false, "only parse and validate; connect to nothing")
	show := fs.Bool("print", false, "print the whole configuration with its defaults, secrets redacted")
	asJSON := fs.Bool("json", false, "findings as JSON lines")
	timeout := fs.Duration("timeout", 20*time.Second, "time limit for all connections together")
	if code, done := env.parse(fs, args, 0); done {
		return code
	}
	cfg, code := env.load(*path)
	if code != exitOK {
		return code
	}
	if *show {
		_, _ = env.stdout.Write(cfg.Redacted())
	}
	r := report{w: env.stdout, json: *asJSON}
	r.add("configuration", inbox.Finding{Level: inbox.LevelOK, Subject: *path, Detail: "valid, " + count(len(cfg.Consumers), "consumer")})
	for _, w := range cfg.Warnings() {
		r.add("configuration", inbox.Finding{Level: inbox.LevelWarn, Subject: *path, Detail: w.String()})
	}
	if !*offline {
		ctx, cancel := context.WithTimeout(ctx, *timeout)
		defer cancel()
		examine(ctx, cfg, &r)
	}
	return r.close()
}

// examine looks at everything outside that the configuration names.
func examine(ctx context.Context, cfg config.Config, r *report) {
	quiet := slog.New(slog.DiscardHandler)
	examineStore(ctx, cfg, r)
	for _, cc := range cfg.Consumers {
		r.add("consumer "+cc.Name, consumer.Examine(ctx, consumerOptions(cfg, cc))...)
		if cc.Park.ToBroker {
			p := consumer.NewPublisher(publisherOptions(cfg, cc), quiet)
			r.add("consumer "+cc.Name, p.Examine(ctx)...)
			_ = p.Close()
		}
		if !cc.Inbox.URL.IsZero() {
			r.add("consumer "+cc.Name, shared.Examine(ctx, sharedOptions(cc))...)
		}
		o, err := forwardOptions(cc)
		if err == nil {
			r.add("consumer "+cc.Name, forward.Examine(ctx, o)...)
			continue
		}
		r.add("consumer "+cc.Name, inbox.Finding{Level: inbox.LevelFail, Subject: "forward.status", Detail: err.Error()})
	}
}

// examineStore never opens the store as the daemon does, which would create what
// is missing and take over what the last run left behind.
func examineStore(ctx context.Context, cfg config.Config, r *report) {
	var findings []inbox.Finding
	var err error
	if isEmbedded(cfg) {
		findings, err = sqlite.Check(ctx, sqliteOptions(cfg))
	} else {
		findings, err = postgres.Check(ctx, postgresOptions(cfg))
	}
	if err != nil {
		findings = append(findings, storeFinding(cfg.Store.URL.String(), err))
	}
	r.add("store", findings...)
}

// storeFinding says what to do about a store that could not be opened.
func storeFinding(subject string, err error) inbox.Finding {
	// Some errors list what was tried, a line for each.
	f := inbox.Finding{Level: inbox.LevelFail, Subject: subject, Detail: strings.Join(strings.Fields(err.Error()), " ")}
	switch {
	case errors.Is(err, sqlite.ErrInUse):
		f.Level = inbox.LevelWarn
		f.Remedy = "none, if that is the daemon of this configuration, at work; the file itself is examined only while it does not run"
	case errors.Is(err, store.ErrSetup):
		f.Remedy = "do what the message says; inboxd run refuses to start on this store (exit code 2)"
	default:
		f.Remedy = "start the database, or mend store.url; inboxd run waits for a store that is not there yet"
	}
	return f
}

// report prints findings as they come and remembers the worst.
type report struct {
	w             io.Writer
	json          bool
	ok, warn, bad int
}

func (r *report) add(part string, findings ...inbox.Finding) {
	for _, f := range findings {
		switch f.Level {
		case inbox.LevelFail:
			r.bad++
		case inbox.LevelWarn:
			r.warn++
		default:
			r.ok++
		}
		if r.json {
			line, _ := json.Marshal(struct {
				Part string `json:"part"`
				inbox.Finding
			}{part, f})
			fmt.Fprintf(r.w, "%s\n", line)
			continue
		}
		fmt.Fprintf(r.w, "%-4s  %s: %s: %s\n", f.Level, part, f.Subject, f.Detail)
		if f.Remedy != "" {
			fmt.Fprintf(r.w, "      remedy: %s\n", f.Remedy)
		}
	}
}

// count is n with its noun in the right number.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// close prints the sum and returns the exit code.
func (r *report) close() int {
	if !r.json {
		fmt.Fprintf(r.w, "%d ok, %s, %s\n", r.ok, count(r.warn, "warning"), count(r.bad, "failure"))
	}
	if r.bad > 0 {
		return exitFailed
	}
	return exitOK
}
