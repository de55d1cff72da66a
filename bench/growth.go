package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	_ "modernc.org/sqlite" // to fill an inbox
)

// growthConsumer is the consumer whose inbox is filled.
const growthConsumer = "bench"

// oldRecords is the number of the first record that a filled inbox holds: no
// message of a run has it.
const oldRecords = 100_000_000

func runGrowth(ctx context.Context, args []string, out io.Writer) error {
	fs := flag.NewFlagSet("growth", flag.ContinueOnError)
	session := addSessionFlags(fs)
	stores := fs.String("programs", "inboxd-sqlite,inboxd-postgres", "programs to look at")
	records := fs.String("records", "0,1000000,10000000", "records in the inbox before the run")
	consumers := fs.String("consumers", "1,4,16", "consumers in one daemon, each with a queue")
	replicas := fs.String("replicas", "1,2,4", "daemons on one queue (PostgreSQL)")
	runs := fs.Int("runs", 3, "runs of each")
	base := scenario{Queue: "quorum", Duplicates: 0.1, Size: 1024, Consumers: 1, Replicas: 1}
	fs.IntVar(&base.Messages, "messages", 50_000, "messages in the queue, duplicates included")
	fs.IntVar(&base.Concurrency, "concurrency", 64, "requests in flight, over all consumers and replicas")
	if err := parseFlags(fs, args); err != nil {
		return err
	}
	chosen, err := programsNamed(*stores)
	if err != nil {
		return err
	}
	var axes [3][]int
	for i, text := range []string{*records, *consumers, *replicas} {
		if axes[i], err = splitInts(text); err != nil {
			return err
		}
	}
	g := growth{chosen: chosen, base: base.sized(), runs: *runs, out: out}
	return withSession(ctx, session, out, func(b *bench) error {
		g.bench = b
		e := b.environment()
		err := errors.Join(g.inbox(ctx, axes[0]), g.consumers(ctx, axes[1]), g.replicas(ctx, axes[2]))
		return errors.Join(err, writeJSON(*session.json, e, "growth", g.all), invalidRuns(g.all))
	})
}

// growth collects the runs of all axes.
type growth struct {
	*bench
	chosen []program
	base   scenario
	runs   int
	out    io.Writer
	all    []result
}

// inbox measures how the rate depends on the records that are there already.
func (g *growth) inbox(ctx context.Context, sizes []int) error {
	fmt.Fprintln(g.out, "\nRecords in the inbox")
	var rows []growthRow
	for _, p := range g.chosen {
		for _, n := range sizes {
			label := fmt.Sprintf("%s, %s records", p.name, thousands(float64(n)))
			results, err := g.withInbox(ctx, p, n)
			if err != nil {
				return fmt.Errorf("%s: %w", label, err)
			}
			rows = append(rows, growthRow{label, results})
		}
	}
	g.print(rows)
	return nil
}

func (g *growth) withInbox(ctx context.Context, p program, records int) (results []result, err error) {
	dir, err := os.MkdirTemp(g.dir, "inbox-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	storeURL, drop, err := g.newStore(ctx, p, dir, inboxStore{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, drop()) }()
	if err := g.migrate(ctx, p, storeURL); err != nil {
		return nil, err
	}
	began := time.Now()
	if err := g.fillInbox(ctx, storeURL, records); err != nil {
		return nil, fmt.Errorf("filling the inbox: %w", err)
	}
	if records > 0 {
		fmt.Fprintf(g.out, "  filled %s with %s records in %v\n", p.name, thousands(float64(records)), time.Since(began).Round(time.Second))
	}
	for round := range g.runs {
		r, err := g.drain(ctx, p, g.base, inboxStore{url: storeURL, base: round * g.base.Messages, name: growthConsumer})
		if err != nil {
			return results, err
		}
		r.Round, r.Records = round, records
		results = append(results, r)
	}
	return results, nil
}

// migrate lets the program make its tables, by handling one message.
func (g *growth) migrate(ctx context.Context, p program, storeURL string) error {
	s := scenario{Queue: "classic", Messages: 1, Size: 100, Concurrency: 1, Prefetch: 1}
	r, err := g.drain(ctx, p, s, inboxStore{url: storeURL, base: oldRecords / 10, name: growthConsumer})
	if err != nil {
		return err
	}
	if r.Invalid != "" {
		return fmt.Errorf("making the tables: %s", r.Invalid)
	}
	return nil
}

// print shows one axis.
func (g *growth) print(rows []growthRow) {
	table := [][]string{{"program", "messages/s", "min–max", "CPU ms/1000: daemon", "broker", "database", "peak RSS", "runs"}}
	for _, row := range rows {
		g.all = append(g.all, row.results...)
		s := summarise(row.results)[0]
		runs := fmt.Sprint(s.runs)
		if s.invalid > 0 {
			runs += fmt.Sprintf(" (+%d INVALID)", s.invalid)
		}
		table = append(table, []string{
			row.label, thousands(s.rate.median), thousands(s.rate.least) + "–" + thousands(s.rate.most),
			fmt.Sprintf("%.1f", s.cpu[daemonCost]), fmt.Sprintf("%.1f", s.cpu[brokerCost]), fmt.Sprintf("%.1f", s.cpu[databaseCost]),
			bytesText(int(s.peakRSS)), runs,
		})
	}
	printTable(g.out, table)
}

type growthRow struct {
	label   string
	results []result
}

func (g *growth) consumers(ctx context.Context, counts []int) error {
	fmt.Fprintln(g.out, "\nConsumers in one daemon, the same number of requests in flight together")
	return g.vary(ctx, g.chosen, "consumers", counts, func(s *scenario, n int) { s.Consumers = n })
}

func (g *growth) replicas(ctx context.Context, counts []int) error {
	var shareable []program
	for _, p := range g.chosen {
		if p.store == "postgres" {
			shareable = append(shareable, p)
		}
	}
	if len(shareable) == 0 {
		return nil
	}
	fmt.Fprintln(g.out, "\nReplicas on one queue and one inbox, the same number of requests in flight together")
	return g.vary(ctx, shareable, "replicas", counts, func(s *scenario, n int) { s.Replicas = n })
}

func (g *growth) vary(ctx context.Context, chosen []program, what string, counts []int, set func(*scenario, int)) error {
	var rows []growthRow
	for _, p := range chosen {
		for _, n := range counts {
			s := g.base
			set(&s, n)
			row := growthRow{label: fmt.Sprintf("%s, %s: %d", p.name, what, n)}
			for round := range g.runs {
				r, err := g.drain(ctx, p, s, inboxStore{})
				if err != nil {
					return fmt.Errorf("%s: %w", row.label, err)
				}
				r.Round = round
				row.results = append(row.results, r)
			}
			rows = append(rows, row)
		}
	}
	g.print(rows)
	return nil
}

// The statements that fill an inbox with records as the consumer itself would
// have written them. The IDs are of the shape of messageID.
const (
	fillPostgres = `
INSERT INTO inboxd.processed (consumer, message_id, fingerprint, processed_at)
SELECT $1, substr(h, 1, 8) || '-' || substr(h, 9, 4) || '-4' || substr(h, 14, 3) || '-8' || substr(h, 18, 3) || '-' || lpad(n::text, 12, '0'),
       decode(substr(h, 1, 16), 'hex'), now() - interval '1 hour'
FROM (SELECT n, md5(n::text) AS h FROM generate_series($2::bigint, $3::bigint) AS n) AS numbers`

	fillSQLite = `
WITH RECURSIVE numbers(n) AS (SELECT ?2 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?3)
INSERT INTO processed (consumer, message_id, fingerprint, recorded_at)
SELECT (SELECT id FROM consumer WHERE name = ?1),
       substr(h, 1, 8) || '-' || substr(h, 9, 4) || '-4' || substr(h, 14, 3) || '-8' || substr(h, 18, 3) || '-' || printf('%012d', n),
       f, ?4 + n - ?2
FROM (SELECT n, lower(hex(randomblob(16))) AS h, randomblob(8) AS f FROM numbers)
ORDER BY h`
)

func (g *growth) fillInbox(ctx context.Context, storeURL string, records int) error {
	if records == 0 {
		return nil
	}
	if path, ok := strings.CutPrefix(storeURL, "sqlite:"); ok {
		return fillSQLiteInbox(ctx, path, records)
	}
	return g.withDatabase(ctx, storeURL, func(db *pgx.Conn) error {
		const step = 1_000_000
		for first := 0; first < records; first += step {
			last := min(first+step, records) - 1
			if _, err := db.Exec(ctx, fillPostgres, growthConsumer, oldRecords+first, oldRecords+last); err != nil {
				return err
			}
		}
		_, err := db.Exec(ctx, "VACUUM ANALYZE")
		return err
	})
}

func fillSQLiteInbox(ctx context.Context, path string, records int) (err error) {
	db, err := sql.Open("sqlite", filepath.Clean(path)+"?_pragma=cache_size(-400000)&_pragma=synchronous(off)")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	const step = 1_000_000
	now := time.Now().Add(-time.Hour).UnixMilli()
	for first := 0; first < records; first += step {
		last := min(first+step, records) - 1
		if _, err := db.ExecContext(ctx, fillSQLite, growthConsumer, oldRecords+first, oldRecords+last, now); err != nil {
			return err
		}
	}
	_, err = db.ExecContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)")
	return err
}
