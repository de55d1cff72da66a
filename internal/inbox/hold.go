package inbox

import (
	"context"
	"time"
)

// holdContext ends with its parent or when the hold is over. It starts a timer
// only where somebody really waits for that; as a rule nobody does, and a context
// with a deadline would be the dearest part of a request's bookkeeping. It belongs
// to one goroutine.
type holdContext struct {
	context.Context
	until time.Time

	timed context.Context
	stop  context.CancelFunc
}

func (h *holdContext) Deadline() (time.Time, bool) { return h.until, true }

func (h *holdContext) Done() <-chan struct{} {
	if h.timed == nil {
		h.timed, h.stop = context.WithDeadline(h.Context, h.until)
	}
	return h.timed.Done()
}

func (h *holdContext) Err() error {
	if h.timed != nil {
		return h.timed.Err()
	}
	return h.Context.Err()
}

func (h *holdContext) end() {
	if h.stop != nil {
		h.stop()
	}
}
