package admin

import (
	"slices"
	"sync"
	"time"
)

const (
	sampleEvery = 5 * time.Second
	sampleCount = 121 // ten minutes
	rateOver    = 3   // samples that a rate is taken over
)

// sample is a consumer at one moment.
type sample struct {
	at       time.Time
	counters Counters
	inFlight int
	oldest   float64
}

// samples keeps the last minutes of every consumer. Safe for concurrent use.
type samples struct {
	mu   sync.Mutex
	ring map[string][]sample // oldest first
}

func newSamples() *samples { return &samples{ring: map[string][]sample{}} }

func (s *samples) add(now time.Time, cs []ConsumerStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range cs {
		r := append(s.ring[c.Name], sample{now, c.Counters, c.InFlight, c.OldestSeconds})
		if len(r) > sampleCount {
			r = slices.Delete(r, 0, len(r)-sampleCount)
		}
		s.ring[c.Name] = r
	}
}

func (s *samples) of(consumer string) []sample {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.ring[consumer])
}

// rate returns deliveries settled for good a second, lately.
func (s *samples) rate(consumer string) float64 {
	r := s.of(consumer)
	if len(r) < 2 {
		return 0
	}
	return perSecond(r[max(0, len(r)-1-rateOver)], r[len(r)-1], Counters.settled)
}

// perSecond is the growth of a counter between two samples.
func perSecond(from, to sample, of func(Counters) uint64) float64 {
	d := to.at.Sub(from.at).Seconds()
	if d <= 0 || of(to.counters) < of(from.counters) {
		return 0
	}
	return float64(of(to.counters)-of(from.counters)) / d
}
