package consumer

import "sync/atomic"

// maxResting goroutines are kept for the deliveries to come: about as many as one
// ack with `multiple` lets the broker send.
const maxResting = 256

// workers run handlers, each in a goroutine of its own, as many as there are
// deliveries in hand. One that has nothing to do takes the next delivery: a new
// goroutine would have to grow its stack again each time, which costs more than
// all else that the session does for a delivery.
type workers struct {
	jobs    chan job
	resting *atomic.Int64
}

// job is one delivery to handle.
type job struct {
	s *session
	h *held
}

func newWorkers() workers { return workers{jobs: make(chan job), resting: new(atomic.Int64)} }

// start runs j at once. It must not be called after stop.
func (w workers) start(j job) {
	select {
	case w.jobs <- j:
	default:
		go w.run(j)
	}
}

// stop ends the workers that rest, and each other one after its job.
func (w workers) stop() { close(w.jobs) }

func (w workers) run(j job) {
	for more := true; more; {
		j.s.handle(j.h)
		if w.resting.Add(1) > maxResting {
			w.resting.Add(-1)
			return
		}
		j, more = <-w.jobs
		w.resting.Add(-1)
	}
}
