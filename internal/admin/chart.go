package admin

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// A chart's drawing area, in units of its own: the page stretches it.
const (
	chartWidth  = 300.0
	chartHeight = 60.0
)

// chart is one small picture of the last minutes.
type chart struct {
	Title string // what is measured
	Unit  string
	Top   string // the value at the upper edge
	Words string // the picture in words, for who does not see it
	Lines []chartLine
}

// chartLine is one line of a chart; Class is its colour.
type chartLine struct {
	Name, Class string
	Now         string
	Points      string // of the line
	Area        string // of what lies under it, "" for none
}

type series struct {
	name, class string
	values      []float64
	area        bool
}

// charts draws the samples of one consumer, none where there are too few.
func charts(ss []sample) []chart {
	if len(ss) < 3 {
		return nil
	}
	var done, dup, flight []float64
	for i := 1; i < len(ss); i++ {
		done = append(done, perSecond(ss[i-1], ss[i], func(c Counters) uint64 { return c.Processed }))
		dup = append(dup, perSecond(ss[i-1], ss[i], func(c Counters) uint64 { return c.Duplicate }))
		flight = append(flight, float64(ss[i].inFlight))
	}
	minutes := span(ss[len(ss)-1].at.Sub(ss[0].at).Round(time.Second))
	return []chart{
		draw("Messages a second", "/s", minutes,
			series{"processed", "s1", done, true}, series{"duplicates", "s2", dup, false}),
		draw("Requests in flight", "", minutes, series{"in flight", "s3", flight, true}),
	}
}

func draw(title, unit, over string, all ...series) chart {
	top := 0.0
	for _, s := range all {
		for _, v := range s.values {
			top = max(top, v)
		}
	}
	top = niceTop(top)
	c := chart{Title: title, Unit: unit, Top: rate(top)}
	words := []string{title + " over the last " + over}
	for _, s := range all {
		now, most := s.values[len(s.values)-1], 0.0
		for _, v := range s.values {
			most = max(most, v)
		}
		l := chartLine{Name: s.name, Class: s.class, Now: rate(now) + unit, Points: points(s.values, top)}
		if s.area {
			l.Area = fmt.Sprintf("%.1f,%.1f %s %.1f,%.1f", x(0, len(s.values)), chartHeight, l.Points, chartWidth, chartHeight)
		}
		c.Lines = append(c.Lines, l)
		words = append(words, fmt.Sprintf("%s: now %s, at most %s", s.name, rate(now), rate(most)))
	}
	c.Words = strings.Join(words, "; ")
	return c
}

// x places value i of n: the newest is always at the right edge, and a full
// ring fills the width.
func x(i, n int) float64 {
	return chartWidth - float64(n-1-i)*chartWidth/float64(sampleCount-2)
}

func points(values []float64, top float64) string {
	var b strings.Builder
	for i, v := range values {
		if i > 0 {
			b.WriteByte(' ')
		}
		fmt.Fprintf(&b, "%.1f,%.1f", x(i, len(values)), chartHeight-1-v/top*(chartHeight-3))
	}
	return b.String()
}

// niceTop rounds up to 1, 2 or 5 times a power of ten.
func niceTop(v float64) float64 {
	if v <= 1 {
		return 1
	}
	p := math.Pow(10, math.Floor(math.Log10(v)))
	for _, f := range []float64{1, 2, 5, 10} {
		if v <= f*p {
			return f * p
		}
	}
	return v
}
