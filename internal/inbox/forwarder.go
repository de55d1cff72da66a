package inbox

import (
	"context"
	"time"
)

// Forwarder hands deliveries to the application.
type Forwarder interface {
	// Forward sends one request for d, d.Requests+1 being its number, and tells
	// what came of it. Before sending it waits for a concurrency slot and for
	// the breaker; ctx bounds that waiting alone (NotSent). Once the request is
	// being written, only its own time limit or the end of the process's grace
	// cuts it short: a request is not cancelled because a broker connection
	// broke. Safe for concurrent use.
	Forward(ctx context.Context, d *Delivery) Answer
}

// Verdict classifies the answer to one request. Its String is the value of the
// metric label `result`; the set is closed.
type Verdict uint8

// The verdicts, in the order of the contract's answer table.
const (
	NotSent       Verdict = iota // no request was sent: the wait for a slot was given up
	Done                         // 2xx: processed, or already processed
	Busy                         // 409, 425: the same key is being processed
	NotNow                       // 408, 429, 502, 503, 504
	Failed                       // any other 5xx
	NoAnswer                     // time-out, connection cut after the request was written, not HTTP, 101
	Unreachable                  // connection refused, no such socket, DNS: nothing was written
	Refused                      // 400, 413, 415, 422: this message will never do
	Misconfigured                // any other 4xx, 3xx: the set-up is wrong, not the message
	Gone                         // 410: pause until told to resume
)

// Verdicts lists every Verdict.
var Verdicts = []Verdict{
	NotSent, Done, Busy, NotNow, Failed, NoAnswer, Unreachable, Refused, Misconfigured, Gone,
}

func (v Verdict) String() string {
	switch v {
	case Done:
		return "done"
	case Busy:
		return "busy"
	case NotNow:
		return "not_now"
	case Failed:
		return "failed"
	case NoAnswer:
		return "no_answer"
	case Unreachable:
		return "unreachable"
	case Refused:
		return "refused"
	case Misconfigured:
		return "misconfigured"
	case Gone:
		return "gone"
	default:
		return "not_sent"
	}
}

// Sent reports whether a request reached the application, or may have.
func (v Verdict) Sent() bool { return v != NotSent && v != Unreachable }

// Counts reports whether the request counts against max_attempts.
func (v Verdict) Counts() bool { return v == Failed || v == NoAnswer }

// Answer is what came of one request.
type Answer struct {
	Verdict Verdict
	// Status is the HTTP status, 0 where there was no answer.
	Status int
	// RetryAfter is the least time to wait before the next request, from the
	// header of that name, at most one hour; 0 where the answer has none.
	RetryAfter time.Duration
	// Excerpt is the start of the answer's body, at most 2 KiB.
	Excerpt []byte
	// Cut says of NoAnswer that the connection ended before an answer, as it
	// does where the application dies: perhaps of this very message.
	Cut bool
	// Err explains every verdict but Done.
	Err error
}
