package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// spread is a median with its least and greatest value.
type spread struct{ median, least, most float64 }

func spreadOf(values []float64) spread {
	if len(values) == 0 {
		return spread{}
	}
	sorted := slices.Sorted(slices.Values(values))
	mid := len(sorted) / 2
	median := sorted[mid]
	if len(sorted)%2 == 0 {
		median = (sorted[mid-1] + sorted[mid]) / 2
	}
	return spread{median, sorted[0], sorted[len(sorted)-1]}
}

// summary is one program's line.
type summary struct {
	program       string
	runs, invalid int
	rate, ratio   spread
	cpu           map[string]float64
	peakRSS       float64
}

// summarise makes one line for each program, in the order of appearance. The
// ratio is that to the yardstick's run of the same round.
func summarise(results []result) []summary {
	yard := map[int]float64{}
	var names []string
	for _, r := range results {
		if !slices.Contains(names, r.Program) {
			names = append(names, r.Program)
		}
		if r.Program == yardstick && r.Invalid == "" {
			yard[r.Round] = r.Rate
		}
	}
	var lines []summary
	for _, name := range names {
		s := summary{program: name, cpu: map[string]float64{}}
		var rates, ratios, rss []float64
		cpu := map[string][]float64{}
		for _, r := range results {
			switch {
			case r.Program != name:
				continue
			case r.Invalid != "":
				s.invalid++
				continue
			}
			s.runs++
			rates = append(rates, r.Rate)
			rss = append(rss, float64(r.PeakRSS[daemonCost]))
			if yard[r.Round] > 0 {
				ratios = append(ratios, r.Rate/yard[r.Round])
			}
			for _, c := range costs {
				cpu[c] = append(cpu[c], r.CPU[c])
			}
		}
		s.rate, s.ratio, s.peakRSS = spreadOf(rates), spreadOf(ratios), spreadOf(rss).median
		for _, c := range costs {
			s.cpu[c] = spreadOf(cpu[c]).median
		}
		lines = append(lines, s)
	}
	return lines
}

func printComparison(out io.Writer, lines []summary) {
	rows := [][]string{{
		"program", "messages/s", "min–max", "× bare", "min–max",
		"CPU ms/1000: daemon", "broker", "database", "handler", "peak RSS", "runs",
	}}
	for _, l := range lines {
		runs := fmt.Sprint(l.runs)
		if l.invalid > 0 {
			runs += fmt.Sprintf(" (+%d INVALID)", l.invalid)
		}
		ratio, ratioSpread := "–", "–"
		if l.ratio.median > 0 {
			ratio = fmt.Sprintf("%.2f", l.ratio.median)
			ratioSpread = fmt.Sprintf("%.2f–%.2f", l.ratio.least, l.ratio.most)
		}
		if l.runs == 0 {
			rows = append(rows, []string{l.program, "–", "–", "–", "–", "–", "–", "–", "–", "–", runs})
			continue
		}
		rows = append(rows, []string{
			l.program, thousands(l.rate.median), thousands(l.rate.least) + "–" + thousands(l.rate.most), ratio, ratioSpread,
			fmt.Sprintf("%.1f", l.cpu[daemonCost]), fmt.Sprintf("%.1f", l.cpu[brokerCost]),
			fmt.Sprintf("%.1f", l.cpu[databaseCost]), fmt.Sprintf("%.1f", l.cpu[handlerCost]),
			bytesText(int(l.peakRSS)), runs,
		})
	}
	printTable(out, rows)
}

// printTable writes a table that is readable as it is and valid Markdown. The
// first column is text, the others are figures.
func printTable(out io.Writer, rows [][]string) {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	line := func(row []string) {
		for i, cell := range row {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i == 0 {
				fmt.Fprint(out, "| ", cell, pad)
			} else {
				fmt.Fprint(out, " | ", pad, cell)
			}
		}
		fmt.Fprintln(out, " |")
	}
	line(rows[0])
	for i, w := range widths {
		if i == 0 {
			fmt.Fprint(out, "|", strings.Repeat("-", w+2))
		} else {
			fmt.Fprint(out, "|", strings.Repeat("-", w+1), ":")
		}
	}
	fmt.Fprintln(out, "|")
	for _, row := range rows[1:] {
		line(row)
	}
}

func thousands(v float64) string {
	s := fmt.Sprintf("%.0f", v)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func bytesText(n int) string {
	switch {
	case n >= 1<<20:
		return fmt.Sprintf("%.0f MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.0f KiB", float64(n)/(1<<10))
	default:
		return fmt.Sprintf("%d B", n)
	}
}
