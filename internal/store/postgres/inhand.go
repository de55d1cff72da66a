package postgres

import (
	"context"
	"sync"
)

// inHand are the stored messages that this process has handed over and that were
// not settled since. The server marks them as ours too, but it may have done so
// in a call whose answer was lost: what it marks and we do not have is free.
type inHand struct {
	turn chan struct{} // holds a token while nobody takes messages

	mu    sync.Mutex
	takes uint64
	by    map[string]uint64 // ID to the number of the call that took it
}

func newInHand() *inHand {
	h := &inHand{turn: make(chan struct{}, 1), by: make(map[string]uint64)}
	h.turn <- struct{}{}
	return h
}

// lock keeps other calls from taking messages until unlock, or reports that ctx
// ended.
func (h *inHand) lock(ctx context.Context) error {
	select {
	case <-h.turn:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (h *inHand) unlock() { h.turn <- struct{}{} }

func (h *inHand) ids() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	ids := make([]string, 0, len(h.by))
	for id := range h.by {
		ids = append(ids, id)
	}
	return ids
}

func (h *inHand) add(ids []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.takes++
	for _, id := range ids {
		h.by[id] = h.takes
	}
}

// settling returns what to call once the message is settled at the server. By
// then it may have been taken again: that stands.
func (h *inHand) settling(id string) (settled func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	take, ok := h.by[id]
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if ok && h.by[id] == take {
			delete(h.by, id)
		}
	}
}
