package inbox

// Outcome is how the way of one delivery ended. Its String is the value of the
// metric label `outcome`; the set is closed.
type Outcome uint8

// The outcomes. The zero value is the one that loses nothing.
const (
	// Returned: nothing durable happened; the message goes back to where it
	// came from.
	Returned Outcome = iota
	// Processed: the handler answered 2xx and that is recorded (or, where the
	// message has no ID and is forwarded all the same, needs no record).
	Processed
	// Duplicate: it was recorded before; no request was sent.
	Duplicate
	// Parked: kept whole and durably for a person to decide on.
	Parked
	// Deferred: kept whole and durably with a due time, to be taken up again.
	Deferred
	// Rejected: given to the broker's dead-letter exchange, which the user
	// asked for by name (on_missing_id: reject).
	Rejected

	outcomeCount
)

// Outcomes lists every Outcome, for metrics that are created at start.
var Outcomes = []Outcome{Returned, Processed, Duplicate, Parked, Deferred, Rejected}

func (o Outcome) String() string {
	switch o {
	case Processed:
		return "processed"
	case Duplicate:
		return "duplicate"
	case Parked:
		return "parked"
	case Deferred:
		return "deferred"
	case Rejected:
		return "rejected"
	default:
		return "returned"
	}
}

// Decision is what the broker hears about a delivery.
type Decision uint8

// The decisions. Requeue is the zero value on purpose: it loses nothing.
const (
	// Requeue is basic.nack with requeue, never basic.reject, which counts as a
	// failed delivery on a quorum queue since RabbitMQ 4.3.
	Requeue Decision = iota
	// Ack removes the message from the queue.
	Ack
	// Reject is basic.reject without requeue.
	Reject
)

// Decision is the only place where an outcome becomes a word to the broker.
func (o Outcome) Decision() Decision {
	switch o {
	case Processed, Duplicate, Parked, Deferred:
		return Ack
	case Rejected:
		return Reject
	default: // Returned, and any outcome added in haste
		return Requeue
	}
}

// Result is an outcome and, where there is something to explain, why.
type Result struct {
	Outcome Outcome
	Reason  ParkReason // where Outcome is Parked
	Err     error
}

// ParkReason says why a message was parked. Its String is the value of the
// metric label `reason` and of the API's field; the set is closed.
type ParkReason uint8

// The reasons.
const (
	NoReason      ParkReason = iota
	MissingID                // no source of message_id gave one
	Mismatch                 // same ID as a recorded message, another body
	HandlerReject            // the handler's answer says: never
	AttemptsUsed             // max_attempts requests failed
	TooLarge                 // body above max_body
	NoEvidence               // 2xx, but no row in the shared table
	DeliveryLimit            // the broker would drop it soon
)

// ParkReasons lists every ParkReason but NoReason.
var ParkReasons = []ParkReason{
	MissingID, Mismatch, HandlerReject, AttemptsUsed, TooLarge, NoEvidence, DeliveryLimit,
}

func (r ParkReason) String() string {
	switch r {
	case MissingID:
		return "missing_id"
	case Mismatch:
		return "mismatch"
	case HandlerReject:
		return "rejected"
	case AttemptsUsed:
		return "attempts"
	case TooLarge:
		return "too_large"
	case NoEvidence:
		return "no_evidence"
	case DeliveryLimit:
		return "delivery_limit"
	default:
		return ""
	}
}

// ParseParkReason is the inverse of ParkReason.String; ok is false for a word
// that names no reason.
func ParseParkReason(s string) (r ParkReason, ok bool) {
	for _, r := range ParkReasons {
		if r.String() == s {
			return r, true
		}
	}
	return NoReason, false
}
