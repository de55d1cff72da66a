package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"
)

const allPrograms = "bare,bare-multiple,bare-fasthttp,inboxd-sqlite,inboxd-postgres,watermill,watermill-dedup"

func runThroughput(ctx context.Context, args []string, out io.Writer) error {
	fs := flag.NewFlagSet("throughput", flag.ContinueOnError)
	session := addSessionFlags(fs)
	names := fs.String("programs", allPrograms, "programs to compare")
	var external []program
	fs.Func("external", "another program, as `NAME=COMMAND`; see docs/benchmarks.md", func(spec string) error {
		p, err := externalProgram(spec)
		external = append(external, p)
		return err
	})
	runs := fs.Int("runs", 5, "rounds; in each, every program runs once")
	matrix := fs.Bool("matrix", false, "vary queue type, concurrency, handler, size and configuration, one at a time")
	full := fs.Bool("full", false, "with -matrix: every combination (takes hours)")
	quick := fs.Bool("quick", false, "a third of the messages and three rounds")
	base := scenario{Queue: "quorum", Consumers: 1, Replicas: 1}
	fs.StringVar(&base.Queue, "queue", "quorum", "quorum or classic")
	fs.IntVar(&base.Messages, "messages", 110_000, "messages in the queue, duplicates included; fewer where they would take long")
	fs.Float64Var(&base.Duplicates, "duplicates", 0.10, "share of duplicates")
	fs.IntVar(&base.Size, "size", 1024, "bytes of a body")
	fs.IntVar(&base.Concurrency, "concurrency", 64, "requests in flight")
	fs.IntVar(&base.Prefetch, "prefetch", 0, "unacknowledged deliveries; 0 takes 16 times the concurrency, at most 2000")
	fs.IntVar(&base.DelayMS, "delay", 0, "milliseconds that the handler takes")
	fs.BoolVar(&base.Defaults, "defaults", false, "leave inboxd's concurrency and prefetch at their defaults")
	if err := parseFlags(fs, args); err != nil {
		return err
	}
	chosen, err := programsNamed(*names)
	if err != nil {
		return err
	}
	chosen = append(chosen, external...)
	if *quick {
		base.Messages, *runs = base.Messages*4/11, min(*runs, 3)
	}
	scenarios := []scenario{base}
	switch {
	case *matrix && *full:
		scenarios = everyScenario(base)
	case *matrix:
		scenarios = starScenarios(base)
	}
	return withSession(ctx, session, out, func(b *bench) error {
		e := b.environment()
		var all []result
		for _, s := range scenarios {
			results, err := b.compare(ctx, chosen, s.sized(), *runs, out)
			all = append(all, results...)
			if err != nil {
				return err
			}
			if err := writeJSON(*session.json, e, "throughput", all); err != nil {
				return err
			}
		}
		return invalidRuns(all)
	})
}

// compare lets the programs run in turn, round after round, so that a change of
// the machine's mood meets all of them.
func (b *bench) compare(ctx context.Context, chosen []program, s scenario, runs int, out io.Writer) ([]result, error) {
	fmt.Fprintf(out, "\n%v\n", s)
	var results []result
	for round := range runs {
		fmt.Fprintf(out, "  round %d:", round+1)
		for _, p := range chosen {
			r, err := b.drain(ctx, p, s, inboxStore{})
			if err != nil {
				fmt.Fprintln(out)
				return results, fmt.Errorf("%s: %w", p.name, err)
			}
			r.Round = round
			results = append(results, r)
			if r.Invalid != "" {
				fmt.Fprintf(out, "  %s INVALID", p.name)
				continue
			}
			fmt.Fprintf(out, "  %s %.0f/s", p.name, r.Rate)
		}
		fmt.Fprintln(out)
	}
	printComparison(out, summarise(results))
	return results, nil
}

// sized fills in the prefetch and keeps a run within about ten seconds and the
// broker's memory.
func (s scenario) sized() scenario {
	if s.Prefetch == 0 {
		s.Prefetch = max(s.Concurrency, min(16*s.Concurrency, 2000))
	}
	const (
		longest   = 8 * time.Second
		roundTrip = 150 * time.Microsecond // of a request to a handler without delay
		mostBytes = 1 << 30
	)
	perSecond := float64(s.Concurrency) / (time.Duration(s.DelayMS)*time.Millisecond + roundTrip).Seconds()
	s.Messages = min(s.Messages, int(perSecond*longest.Seconds()), mostBytes/s.Size)
	return s
}

// starScenarios varies one thing at a time.
func starScenarios(base scenario) []scenario {
	all := []scenario{base}
	add := func(change func(*scenario)) {
		s := base
		change(&s)
		all = append(all, s)
	}
	add(func(s *scenario) { s.Queue = "classic" })
	for _, c := range []int{1, 16, 256} {
		add(func(s *scenario) { s.Concurrency = c })
	}
	add(func(s *scenario) { s.DelayMS = 5 })
	for _, size := range []int{100, 64 << 10} {
		add(func(s *scenario) { s.Size = size })
	}
	add(func(s *scenario) { s.Defaults, s.Concurrency = true, 16 })
	return all
}

func everyScenario(base scenario) []scenario {
	var all []scenario
	for _, queue := range []string{"quorum", "classic"} {
		for _, delay := range []int{0, 5} {
			for _, size := range []int{100, 1 << 10, 64 << 10} {
				for _, c := range []int{1, 16, 64, 256} {
					s := base
					s.Queue, s.DelayMS, s.Size, s.Concurrency = queue, delay, size, c
					all = append(all, s)
				}
				s := base
				s.Queue, s.DelayMS, s.Size, s.Concurrency, s.Defaults = queue, delay, size, 16, true
				all = append(all, s)
			}
		}
	}
	return all
}

// invalidRuns is nil where there is none.
func invalidRuns(all []result) error {
	why := map[string]string{}
	bad := 0
	for _, r := range all {
		if r.Invalid != "" {
			why[r.Program] = r.Invalid
			bad++
		}
	}
	if bad == 0 {
		return nil
	}
	text := fmt.Sprintf("%d of %d runs are invalid; the last of each program:", bad, len(all))
	for _, name := range slices.Sorted(maps.Keys(why)) {
		text += "\n  " + name + ": " + why[name]
	}
	return errors.New(text)
}
