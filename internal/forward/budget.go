package forward

import (
	"context"
	"slices"
	"sync"
	"time"
)

// The retry budget: retries may add a tenth to the load of what succeeds, and a
// trickle on top, without which nothing could ever succeed again.
const (
	budgetPerSuccess = 0.1
	budgetPerSecond  = 10

	token = 1 - 1e-9 // ten tenths make one, whatever floats say
)

// budget is a token bucket for retries. First requests never ask it.
type budget struct {
	burst float64

	mu      sync.Mutex
	tokens  float64
	filled  time.Time
	waiting []chan struct{}
	timer   *time.Timer // runs while somebody waits
}

func newBudget(slots int) *budget {
	burst := float64(max(10, 2*slots))
	return &budget{burst: burst, tokens: burst, filled: time.Now()}
}

// take waits for a token until ctx ends.
func (b *budget) take(ctx context.Context) error {
	b.mu.Lock()
	b.fill()
	if len(b.waiting) == 0 && b.tokens >= token {
		b.tokens--
		b.mu.Unlock()
		return nil
	}
	w := make(chan struct{})
	b.waiting = append(b.waiting, w)
	b.arm()
	b.mu.Unlock()
	select {
	case <-w:
		return nil
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	n := len(b.waiting)
	b.waiting = slices.DeleteFunc(b.waiting, func(o chan struct{}) bool { return o == w })
	if len(b.waiting) == n { // granted at the same moment
		b.add(1)
	}
	return context.Cause(ctx)
}

// giveBack returns a token that was not used.
func (b *budget) giveBack() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.add(1)
}

// success earns a part of a retry.
func (b *budget) success() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.add(budgetPerSuccess)
}

func (b *budget) add(n float64) {
	b.tokens = min(b.tokens+n, b.burst)
	b.grant()
}

func (b *budget) fill() {
	now := time.Now()
	n := now.Sub(b.filled).Seconds() * budgetPerSecond
	b.filled = now
	b.tokens = min(b.tokens+n, b.burst)
}

func (b *budget) grant() {
	for len(b.waiting) > 0 && b.tokens >= token {
		b.tokens--
		close(b.waiting[0])
		b.waiting = b.waiting[1:]
	}
}

// arm makes sure that the first in line wakes up when time has earned a token.
func (b *budget) arm() {
	if b.timer != nil || len(b.waiting) == 0 {
		return
	}
	missing := time.Duration((1 - b.tokens) / budgetPerSecond * float64(time.Second))
	b.timer = time.AfterFunc(max(missing, time.Millisecond), func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.timer = nil
		b.fill()
		b.grant()
		b.arm()
	})
}
