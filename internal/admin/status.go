package admin

import (
	"context"
	"net/http"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
)

// Life is the daemon's stage of life.
type Life string

// The stages.
const (
	LifeStarting Life = "starting"
	LifeRunning  Life = "running"
	LifeDraining Life = "draining"
	LifeDrained  Life = "drained"
)

// SessionState is the state of a consumer's session at the broker.
type SessionState string

// The session states.
const (
	SessionConnecting SessionState = "connecting" // no connection
	SessionConsuming  SessionState = "consuming"  // registered at the broker
	SessionIdle       SessionState = "idle"       // stopped, because something is in the way
)

// Status is the answer of GET /api/status.
type Status struct {
	Version   string           `json:"version"`
	StartedAt time.Time        `json:"started_at"`
	Life      Life             `json:"life"`
	Consuming bool             `json:"consuming"`
	Store     StoreStatus      `json:"store"`
	Consumers []ConsumerStatus `json:"consumers"`
	Parked    []ParkedCount    `json:"parked"`
	// ParkedError says why Parked is missing.
	ParkedError string `json:"parked_error,omitempty"`
}

// StoreStatus is the state of the store.
type StoreStatus struct {
	Kind string `json:"kind"` // sqlite, postgres
	OK   bool   `json:"ok"`
	Why  string `json:"why,omitempty"` // where it is not OK
	// Retention is the deduplication window in words, "" where unknown.
	Retention string `json:"retention,omitempty"`
}

// ConsumerStatus is the state of one consumer.
type ConsumerStatus struct {
	Name      string `json:"name"`
	Queue     string `json:"queue"`
	Consuming bool   `json:"consuming"`
	// Hindrances are what keeps the gate shut.
	Hindrances []inbox.Closure `json:"hindrances"`
	Session    SessionStatus   `json:"session"`
	Breaker    BreakerStatus   `json:"breaker"`
	// Probation is there while messages go one at a time after an unclean stop.
	Probation *ProbationStatus `json:"probation,omitempty"`
	// InFlight counts requests being answered, Held all deliveries that this
	// process has and has not settled.
	InFlight      int      `json:"in_flight"`
	Held          int      `json:"held"`
	Concurrency   int      `json:"concurrency,omitempty"`
	OldestSeconds float64  `json:"oldest_seconds"` // age of the oldest unsettled delivery
	Counters      Counters `json:"counters"`
	// Rate is deliveries settled for good a second, over the last quarter of a
	// minute. The admin side fills it in.
	Rate float64 `json:"rate"`
}

// SessionStatus is a consumer's session at the broker.
type SessionStatus struct {
	State SessionState `json:"state"`
	Since time.Time    `json:"since,omitzero"`
	Error string       `json:"error,omitempty"` // what ended the last session, or the last dial
}

// BreakerStatus is the state of a consumer's breaker.
type BreakerStatus struct {
	State string    `json:"state"` // closed, open, half_open
	Why   string    `json:"why,omitempty"`
	Since time.Time `json:"since,omitzero"`
}

// ProbationStatus is the time after an unclean stop.
type ProbationStatus struct {
	Since time.Time `json:"since"`
	Left  int       `json:"left"` // messages that go alone before it is over
}

// Counters count deliveries by outcome, and requests, since the start.
type Counters struct {
	Processed uint64 `json:"processed"`
	Duplicate uint64 `json:"duplicate"`
	Parked    uint64 `json:"parked"`
	Deferred  uint64 `json:"deferred"`
	Returned  uint64 `json:"returned"`
	Rejected  uint64 `json:"rejected"`
	Requests  uint64 `json:"requests"`
}

func (c Counters) settled() uint64 {
	return c.Processed + c.Duplicate + c.Parked + c.Deferred + c.Rejected
}

// Flight is a delivery that this process holds at the moment.
type Flight struct {
	Since       time.Time `json:"since,omitzero"`
	Requests    int       `json:"requests,omitempty"`
	Attempts    int       `json:"attempts,omitempty"`
	Redelivered bool      `json:"redelivered,omitempty"`
	LastStatus  int       `json:"last_status,omitempty"`
	// State says what it waits for: claim, slot, handler, retry, record …
	State string `json:"state,omitempty"`
}

// ParkedCount is how many messages are stored for one reason.
type ParkedCount struct {
	Consumer string            `json:"consumer"`
	State    inbox.ParkedState `json:"state"`
	Reason   string            `json:"reason"`
	Count    int64             `json:"count"`
	Oldest   time.Time         `json:"oldest,omitzero"`
}

// notConsuming returns why c does not consume; it is never empty where c does
// not.
func notConsuming(c ConsumerStatus) []inbox.Closure {
	if c.Consuming {
		return nil
	}
	if len(c.Hindrances) > 0 {
		return c.Hindrances
	}
	why := c.Session.Error
	if why == "" {
		why = "no session at the broker yet"
	}
	return []inbox.Closure{{Hindrance: "broker", Why: why, Since: c.Session.Since}}
}

func allConsuming(cs []ConsumerStatus) bool {
	for _, c := range cs {
		if !c.Consuming {
			return false
		}
	}
	return true
}

func (a *Admin) consumers() []ConsumerStatus {
	cs := a.Consumers()
	for i := range cs {
		cs[i].Rate = a.samples.rate(cs[i].Name)
		if cs[i].Hindrances == nil {
			cs[i].Hindrances = []inbox.Closure{}
		}
	}
	return cs
}

func (a *Admin) status(ctx context.Context) Status {
	s := Status{
		Version: a.Version, StartedAt: a.started.UTC(), Life: a.Life(),
		Store: a.Store(), Consumers: a.consumers(), Parked: []ParkedCount{},
	}
	s.Consuming = s.Life == LifeRunning && allConsuming(s.Consumers)
	// A status is wanted most when the store does not answer.
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	counts, err := a.Desk.CountParked(ctx)
	if err != nil {
		s.ParkedError = err.Error()
	}
	for _, c := range counts {
		s.Parked = append(s.Parked, ParkedCount{
			Consumer: c.Consumer, State: c.State, Reason: c.Reason.String(),
			Count: c.Count, Oldest: c.Oldest,
		})
	}
	return s
}

func (a *Admin) getStatus(w http.ResponseWriter, r *http.Request) error {
	return writeJSON(w, http.StatusOK, a.status(r.Context()))
}
