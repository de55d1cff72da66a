package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/inboxd/inboxd/internal/admin/client"
	"github.com/inboxd/inboxd/internal/config"
	"github.com/inboxd/inboxd/internal/store/postgres"
	"github.com/inboxd/inboxd/internal/store/shared"
	"github.com/inboxd/inboxd/internal/store/sqlite"
	"github.com/inboxd/inboxd/internal/verify"
)

// commands is every verb of the command line, in the order of the help.
func commands() []command {
	return []command{
		{"run", "-c FILE", "run the daemon", runDaemon},
		{"check", "-c FILE", "examine configuration, broker, queue, store and handler", runCheck},
		{"explain", "-c FILE", "show the request that a message would become", runExplain},
		{"parked", "list|show|replay|discard|…", "look at parked messages and decide on them", remote(client.Parked)},
		{"show", "CONSUMER ID", "tell what happened to one message", remote(client.Show)},
		{"forget", "CONSUMER ID", "remove a record, so that the message can be processed again", remote(client.Forget)},
		{"record", "CONSUMER ID", "mark a message as processed", remote(client.Record)},
		{"import-ids", "CONSUMER FILE", "mark many messages as processed", remote(client.ImportIDs)},
		{"pause", "CONSUMER", "stop consuming until resumed, across restarts", remote(client.Pause)},
		{"resume", "CONSUMER", "end a pause", remote(client.Resume)},
		{"audit", "", "list who did what, and why", remote(client.Audit)},
		{"drain", "", "stop consuming and wait for the messages in hand (preStop)", remote(client.Drain)},
		{"health", "[--consuming]", "ask the daemon's health endpoint (HEALTHCHECK, probes)", remote(client.Health)},
		{"status", "", "show what every consumer is doing", remote(client.Status)},
		{"schema", "ledger|shared", "print SQL: the store's own tables, or the shared inbox", runSchema},
		{"verify", "[flags] URL", "prove that a handler is idempotent", runVerify},
		{"version", "", "print the version", runVersion},
	}
}

// remote makes a command of a client's verb: it speaks to a running daemon.
func remote(verb func(ctx context.Context, env client.Env, args []string) int) func(context.Context, environment, []string) int {
	return func(ctx context.Context, env environment, args []string) int {
		return verb(ctx, client.Env{Stdin: env.stdin, Stdout: env.stdout, Stderr: env.stderr, Connect: connect}, args)
	}
}

// connect finds the daemon: by the addresses that the flags or the environment
// name, else by the configuration, else where it listens by default.
func connect(where client.Where) (*client.Client, error) {
	c := &client.Client{Admin: cmp.Or(where.AdminURL, os.Getenv("INBOXD_ADMIN")), Metrics: where.MetricsURL}
	cfg := config.Default()
	if file := cmp.Or(where.ConfigFile, os.Getenv("INBOXD_CONFIG")); file != "" {
		var err error
		if cfg, err = config.LoadEndpoints(file); err != nil {
			return nil, err
		}
	}
	c.Admin, c.Metrics = withScheme(c.Admin), withScheme(c.Metrics)
	tokenFile := cmp.Or(where.TokenFile, cfg.Admin.TokenFile)
	if tokenFile != "" {
		c.Token = client.TokenFile(tokenFile)
	}
	var err error
	switch {
	case where.NeedsMetrics && c.Metrics == "":
		if cfg.Metrics.Listen == "" {
			return nil, errors.New("metrics.listen is switched off, so there is nothing to ask")
		}
		c.Metrics, err = client.BaseURL(cfg.Metrics.Listen)
	case !where.NeedsMetrics && c.Admin == "":
		if cfg.Admin.Listen == "" {
			return nil, errors.New("admin.listen is switched off, so there is nothing to ask")
		}
		c.Admin, err = client.BaseURL(cfg.Admin.Listen)
	}
	return c, err
}

// withScheme lets a bare HOST:PORT stand for its URL.
func withScheme(addr string) string {
	if addr == "" || strings.Contains(addr, "://") {
		return addr
	}
	return "http://" + addr
}

func runSchema(_ context.Context, env environment, args []string) int {
	const about = `Usage: inboxd schema ledger [sqlite|postgres]   the tables of the daemon's own store
       inboxd schema shared [flags]              the inbox table of a service (-h: more)

Prints SQL to standard output. The daemon creates its own tables by itself; the
shared table is the service's, and inboxd never creates it.
`
	switch {
	case asksForHelp(args) && args[0] != "shared":
		fmt.Fprint(env.stdout, about)
		return exitOK
	case len(args) > 0 && args[0] == "shared":
		return shared.SchemaMain(args[1:], env.stdout, env.stderr)
	case len(args) > 0 && args[0] == "ledger":
		kind := "postgres"
		if len(args) > 1 {
			kind = args[1]
		}
		schemas := map[string]func() string{"postgres": postgres.Schema, "sqlite": sqlite.Schema}
		if print, ok := schemas[kind]; ok && len(args) <= 2 {
			_, _ = io.WriteString(env.stdout, print())
			return exitOK
		}
		env.errorf("there is no ledger in %q; it is sqlite or postgres", strings.Join(args[1:], " "))
		return exitUsage
	}
	fmt.Fprint(env.stderr, about)
	return exitUsage
}

func runVerify(ctx context.Context, env environment, args []string) int {
	if asksForHelp(args) {
		return verify.Main(ctx, args, env.stdout, env.stdout)
	}
	return verify.Main(ctx, args, env.stdout, env.stderr)
}
