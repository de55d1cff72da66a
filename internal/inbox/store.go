package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// ClaimStatus is the ledger's answer to a claim.
type ClaimStatus uint8

// The answers.
const (
	ClaimNew      ClaimStatus = iota // not recorded: the claim is ours
	ClaimRecorded                    // processed before
	ClaimMismatch                    // recorded with another fingerprint
	ClaimHeld                        // another replica holds a running lease on it
)

// Claim is the ledger's answer for one key.
type Claim struct {
	Key         Key
	Fingerprint Fingerprint // of the delivery that asked
	Status      ClaimStatus
	// RecordedAt is when the message was recorded, by the store's clock, and
	// Age how long ago that was by the same clock; both only for ClaimRecorded
	// and ClaimMismatch.
	RecordedAt time.Time
	Age        time.Duration
}

// Claiming is one of several claims that are made together.
type Claiming struct {
	// Claim has Key and Fingerprint before, and the answer after.
	Claim
	// Err, where set after, says that the answer is not known; as that of Claim.
	Err error
}

// Answered is called by a ledger in the end, with the error that all claims of a
// batch have in common, or nil; Err may say what went wrong with c alone.
func (c *Claiming) Answered(err error) {
	if err == nil {
		err = c.Err
	}
	if err != nil {
		c.Err = fmt.Errorf("claim: %w", err)
	}
}

// ErrNoEvidence is returned by Record in shared mode: the handler answered 2xx
// but its row is not in the shared table.
var ErrNoEvidence = errors.New("the handler answered 2xx but its inbox row is not there")

// Ledger knows which messages were processed. Claim and Record block while the
// implementation collects concurrent calls into one statement (group commit).
// Each call has the implementation's own time limit on its statement; an error
// never means "no": the call may have taken effect, and repeating it is safe.
// All methods are safe for concurrent use.
type Ledger interface {
	// Claim looks key up and, where it is new, takes the exclusive right to
	// forward it as far as the store keeps leases. A claim that this ledger
	// value holds already is renewed, not refused. ctx bounds the waiting, not
	// a statement that has begun.
	Claim(ctx context.Context, key Key, fp Fingerprint) (Claim, error)
	// ClaimAll makes several claims with the cost of little more than one. It does
	// not keep the slice.
	ClaimAll(claims []*Claiming)
	// Record makes "processed" durable and gives the lease up. It is called
	// only after a 2xx for c.Key; recording what is recorded is no error. When
	// it returns nil the record survives a crash of this process and of the
	// store.
	Record(ctx context.Context, c Claim) error
	// Release gives the claim up without a record. It never blocks for long
	// and needs no answer: a lease that is not released runs out by itself.
	Release(c Claim)
}

// ParkedState says what will happen to a stored message.
type ParkedState string

// The states.
const (
	StateParked   ParkedState = "parked"   // waits for a person
	StateDeferred ParkedState = "deferred" // taken up again by itself when due
)

// ParkedMessage is a message kept whole in the store: parked for a person, or
// deferred until it is due. Times are wall-clock times in UTC.
type ParkedMessage struct {
	ID            string // the store's own, opaque, sortable by age
	Consumer      string
	MessageID     MessageID // "" where it has none
	Fingerprint   Fingerprint
	Reason        ParkReason
	State         ParkedState
	Attempts      int
	Requests      int
	Slow          int
	Replays       int    // how often a person sent it again
	LastStatus    int    // 0: no answer
	Answer        []byte // the start of the last answer's body, at most 2 KiB
	Error         string // what happened, in words
	Queue         string
	Redelivered   bool
	FirstReceived time.Time
	LastAttempt   time.Time // zero: never
	ParkedAt      time.Time // when it was parked or deferred last
	Due           time.Time // only for StateDeferred
	Message
}

// ParkedFilter selects parked messages. Zero fields select everything.
type ParkedFilter struct {
	Consumer  string
	MessageID MessageID
	Reason    ParkReason
	State     ParkedState
	Before    time.Time // ParkedAt earlier than this
}

// ErrNotFound is returned where a parked message or a record does not exist.
var ErrNotFound = errors.New("not found")

// Shelf keeps messages whole: parked ones for a person, deferred ones until
// they are due. All methods are safe for concurrent use; an error never means
// "no", and repeating a call is safe.
type Shelf interface {
	// Park stores m durably and sets m.ID where it is empty. Where m.ID is
	// set, that stored message is replaced and is nobody's any more. Where it is
	// not and a message of the same consumer, message ID and body is stored
	// already, that one is updated instead: the same message, delivered again
	// after its ack was lost, is not kept twice. Messages without an ID are
	// never merged.
	Park(ctx context.Context, m *ParkedMessage) error
	// TakeDue hands over up to n deferred messages of the consumer that are
	// due, oldest due first, each to one caller only until that caller parks,
	// removes or puts it back, or its process ends.
	TakeDue(ctx context.Context, consumer string, n int) ([]*ParkedMessage, error)
	// PutBack returns a message that was taken, unchanged but for its due time.
	PutBack(ctx context.Context, id string, due time.Time) error
	// Remove deletes a stored message: it was processed, or is discarded.
	// ErrNotFound where there is none.
	Remove(ctx context.Context, id string) error
}

// Desk is what a person may do with stored messages and with records.
type Desk interface {
	// ListParked returns at most limit messages with an ID greater than after,
	// in the order of their IDs, without Body, Headers and Answer.
	ListParked(ctx context.Context, f ParkedFilter, after string, limit int) ([]*ParkedMessage, error)
	// CountParked counts stored messages by consumer, state and reason.
	CountParked(ctx context.Context) ([]ParkedCount, error)
	// GetParked returns one message whole, or ErrNotFound.
	GetParked(ctx context.Context, id string) (*ParkedMessage, error)
	// Replay makes one parked or deferred message due now, with a fresh set of
	// attempts. ErrNotFound where there is none. A message that is being
	// processed at this moment is left to finish; that is no error.
	Replay(ctx context.Context, id string) error
	// Discard deletes one stored message. ErrNotFound where there is none.
	Discard(ctx context.Context, id string) error

	// Lookup returns the record of key, or ErrNotFound.
	Lookup(ctx context.Context, key Key) (Recorded, error)
	// Forget deletes the record of key, so that the message can be processed
	// again on purpose. ErrNotFound where there is none.
	Forget(ctx context.Context, key Key) error
	// MarkRecorded records key by hand. It reports false where it was recorded
	// already.
	MarkRecorded(ctx context.Context, key Key, fp Fingerprint) (bool, error)

	// Audit appends one line to the audit table.
	Audit(ctx context.Context, e AuditEntry) error
	// ListAudit returns the newest limit entries, newest first.
	ListAudit(ctx context.Context, limit int) ([]AuditEntry, error)
}

// Recorded is what the ledger keeps of a processed message.
type Recorded struct {
	Key         Key
	Fingerprint Fingerprint
	RecordedAt  time.Time
}

// ParkedCount is one row of CountParked.
type ParkedCount struct {
	Consumer string
	State    ParkedState
	Reason   ParkReason
	Count    int64
	Oldest   time.Time // the smallest ParkedAt
}

// AuditEntry is one deed of a person: who, when, what, why.
type AuditEntry struct {
	At       time.Time
	Actor    string
	Action   string // replay, discard, forget, record, pause, resume, …
	Consumer string
	Target   string // message ID or parked message's ID
	Reason   string
}

// Pauses keeps which consumers a person has paused, so that a pause survives a
// restart.
type Pauses interface {
	// SetPaused stores or clears the pause of a consumer.
	SetPaused(ctx context.Context, consumer string, paused bool, why string) error
	// Paused returns the paused consumers and why.
	Paused(ctx context.Context) (map[string]string, error)
}
