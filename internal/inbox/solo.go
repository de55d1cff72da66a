package inbox

import (
	"context"
	"sync"
	"time"
)

// soloFor is how long a request that goes alone keeps the others waiting. What
// kills a handler does so within moments as a rule; one that takes longer than
// this must not stop the whole consumer at every attempt.
const soloFor = 5 * time.Second

// alone reports whether the next request of d must be the only one in flight:
// its last one took the connection with it, so that it may be what kills the
// handler, or something has just killed this process.
//
// A handler that dies cuts every request that it has in hand, and each of them
// has lost an attempt, but only one of them may be guilty. Going alone from then
// on, the innocent ones get their answers, and the guilty one finds nobody beside
// it. So a message loses at most one attempt to another.
func (p *Processor) alone(d *Delivery) bool { return d.Suspect || p.Probation.On() }

// enter takes a place in the window, or the whole of it where the request must
// go alone, and gives it back with leave. One that must go alone lets nobody in
// before it who came after it: it waits for the requests under way and for nothing
// else, and is not starved by the others. It fails only where ctx or the time ends.
func (p *Processor) enter(ctx context.Context, alone bool, until time.Time) (leave func(keepOne bool), err error) {
	if !alone {
		if err := p.Window.enter(ctx, 1, until); err != nil {
			return nil, err
		}
		return p.leaveOne, nil
	}
	places := p.Window.places
	if err := p.Window.enter(ctx, places, until); err != nil {
		return nil, err
	}
	letOthersIn := sync.OnceFunc(func() { p.Window.leave(places - 1) })
	t := time.AfterFunc(soloFor, letOthersIn)
	return func(keepOne bool) {
		t.Stop()
		letOthersIn()
		p.leaveOne(keepOne)
	}, nil
}

func (p *Processor) leaveOne(keepOne bool) {
	if !keepOne {
		p.Window.leave(1)
	}
}
