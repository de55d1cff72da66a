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

// door is where requests line up before the window, in the order of their
// coming. One that must go alone stays in the door until it has the whole
// window, so that none starts behind it and none is starved by it: it waits for
// the requests under way and for nothing else.
type door struct {
	once sync.Once
	ch   chan struct{}
}

func (d *door) c() chan struct{} {
	d.once.Do(func() { d.ch = make(chan struct{}, 1) })
	return d.ch
}

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
// go alone, and gives it back with leave. It fails only where ctx ends.
func (p *Processor) enter(ctx context.Context, alone bool) (leave func(keepOne bool), err error) {
	in := p.door.c()
	select {
	case in <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	places := 1
	if alone {
		places = cap(p.Window)
	}
	for n := range places {
		select {
		case p.Window <- struct{}{}:
		case <-ctx.Done():
			p.free(n)
			<-in
			return nil, context.Cause(ctx)
		}
	}
	if !alone {
		<-in
		return func(keepOne bool) {
			if !keepOne {
				p.free(1)
			}
		}, nil
	}
	letOthersIn := sync.OnceFunc(func() {
		p.free(places - 1)
		<-in
	})
	t := time.AfterFunc(soloFor, letOthersIn)
	return func(keepOne bool) {
		t.Stop()
		letOthersIn()
		if !keepOne {
			p.free(1)
		}
	}, nil
}

func (p *Processor) free(places int) {
	for range places {
		<-p.Window
	}
}
