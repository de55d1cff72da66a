package inbox

import (
	"slices"
	"sync"
	"time"
)

// Hindrance is a reason not to consume. Its string is a label and an API value;
// the set is closed.
type Hindrance string

// The hindrances.
const (
	HindrancePaused   Hindrance = "paused"   // a person, or the handler's 410, said so
	HindranceHandler  Hindrance = "handler"  // the handler's health URL does not answer 2xx
	HindranceBreaker  Hindrance = "breaker"  // the breaker has been open for long
	HindranceStore    Hindrance = "store"    // the store does not answer
	HindranceDraining Hindrance = "draining" // the daemon is about to stop
)

// Closure is one hindrance in force: what, why in words, and since when.
type Closure struct {
	Hindrance Hindrance `json:"hindrance"`
	Why       string    `json:"why"`
	Since     time.Time `json:"since"`
}

// Gate joins everything that can keep one consumer from consuming. It is open
// while no hindrance is in force. Safe for concurrent use.
type Gate struct {
	mu       sync.Mutex
	closures []Closure
	changed  chan struct{}
}

// NewGate returns a gate that the given hindrances close from the start.
func NewGate(closed ...Closure) *Gate {
	return &Gate{closures: closed, changed: make(chan struct{})}
}

// Shut puts a hindrance in force. Shutting again changes why, not since when.
func (g *Gate) Shut(h Hindrance, why string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range g.closures {
		if g.closures[i].Hindrance == h {
			g.closures[i].Why = why
			return
		}
	}
	g.closures = append(g.closures, Closure{Hindrance: h, Why: why, Since: time.Now()})
	g.notify()
}

// Open lifts a hindrance; lifting one that is not in force does nothing.
func (g *Gate) Open(h Hindrance) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := len(g.closures)
	g.closures = slices.DeleteFunc(g.closures, func(c Closure) bool { return c.Hindrance == h })
	if len(g.closures) != n {
		g.notify()
	}
}

func (g *Gate) notify() {
	close(g.changed)
	g.changed = make(chan struct{})
}

// State returns the hindrances in force, none where the gate is open, and a
// channel that is closed at the next change.
func (g *Gate) State() (closures []Closure, changed <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.closures), g.changed
}

// IsOpen reports whether nothing is in the way.
func (g *Gate) IsOpen() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.closures) == 0
}
