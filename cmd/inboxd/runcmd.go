package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"

	"github.com/inboxd/inboxd/internal/config"
	"github.com/inboxd/inboxd/internal/store"
	"github.com/inboxd/inboxd/internal/store/shared"
)

// flags returns a flag set that prints its usage to where it belongs and never
// exits by itself.
func (e environment) flags(name, args, about string) *flag.FlagSet {
	fs := flag.NewFlagSet("inboxd "+name, flag.ContinueOnError)
	fs.SetOutput(e.stderr)
	fs.Usage = func() {
		fmt.Fprintf(fs.Output(), "Usage: inboxd %s %s\n\n%s\n\nFlags:\n", name, args, about)
		fs.PrintDefaults()
	}
	return fs
}

// parse parses args, with no operands wanted; done means that the command ends
// with code.
func (e environment) parse(fs *flag.FlagSet, args []string, operands int) (code int, done bool) {
	if asksForHelp(args) {
		fs.SetOutput(e.stdout) // asked for, so no error
	}
	switch err := fs.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return exitOK, true
	case err != nil:
		return exitUsage, true
	case fs.NArg() > operands:
		e.errorf("unexpected argument %q; '%s -h' tells the usage", fs.Arg(operands), fs.Name())
		return exitUsage, true
	}
	return exitOK, false
}

func asksForHelp(args []string) bool {
	return slices.ContainsFunc(args, func(a string) bool { return a == "-h" || a == "-help" || a == "--help" })
}

// configFlag adds -c, whose default is INBOXD_CONFIG.
func configFlag(fs *flag.FlagSet) *string {
	return fs.String("c", os.Getenv("INBOXD_CONFIG"), "configuration `FILE` (default: $INBOXD_CONFIG)")
}

// load reads the configuration and prints every problem of it.
func (e environment) load(path string) (cfg config.Config, code int) {
	if path == "" {
		e.errorf("%v", errNoConfig)
		return cfg, exitUsage
	}
	cfg, err := config.Load(path)
	if err != nil {
		e.errorf("%v", err)
		return cfg, exitUsage
	}
	return cfg, exitOK
}

func newLogger(c config.Log, w io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.Level)) // checked by the configuration
	o := &slog.HandlerOptions{Level: level, ReplaceAttr: readableDuration}
	if c.Format == "text" {
		return slog.New(slog.NewTextHandler(w, o))
	}
	return slog.New(slog.NewJSONHandler(w, o))
}

// readableDuration writes durations as 1.5s; the JSON handler would write
// nanoseconds.
func readableDuration(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	return a
}

func runDaemon(ctx context.Context, env environment, args []string) int {
	fs := env.flags("run", "-c FILE", "Runs the daemon until SIGTERM or SIGINT, which drain it; a second signal ends\nit at once.")
	path := configFlag(fs)
	if code, done := env.parse(fs, args, 0); done {
		return code
	}
	cfg, code := env.load(*path)
	if code != exitOK {
		return code
	}
	log := newLogger(cfg.Log, env.stderr)
	//nolint:forbidigo // for the libraries that write to the standard logger; ours is passed in
	slog.SetDefault(log)
	for _, w := range cfg.Warnings() {
		log.Warn("configuration", "warning", w.String())
	}
	if n := limitMemory(); n > 0 {
		log.Info("memory limit set from the cgroup", "bytes", n)
	}
	if cfg.MaxInHand == config.SizeAuto {
		for _, w := range cfg.WarnInHand(maxInHand(cfg)) {
			log.Warn("configuration", "warning", w.String())
		}
	}
	tuneCollector()
	err := newDaemon(cfg, log).run(ctx)
	var refused *shared.RefusedError
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, store.ErrSetup), errors.As(err, &refused):
		env.errorf("%v", err)
		return exitUsage // a restart will not help
	default:
		env.errorf("%v", err)
		return exitFailed
	}
}
