// Package store holds what the stores that keep messages have in common: the
// interface they fulfil, the metrics, the IDs and the stored form of a message.
// The stores themselves are in the packages below it; storetest says what each
// of them must do.
package store

import (
	"context"
	"errors"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
)

// Store is a ledger with leases as far as it has them, and the place where
// messages are kept.
type Store interface {
	inbox.Ledger
	inbox.Shelf
	inbox.Desk
	inbox.Pauses

	// Run does the upkeep until ctx ends: retention, leases, gauges. Exactly one
	// Run is needed for each store; claims are refused to nobody without it, but
	// leases are kept alive by it.
	Run(ctx context.Context) error
	// Healthy returns nil while the store can record: what a consumer needs
	// before it may go on. Where the last write failed it tries one.
	Healthy(ctx context.Context) error
	// Examine tells what a person should know about the store.
	Examine(ctx context.Context) []inbox.Finding
	// UncleanStop reports whether whoever had the store before Open ended in the
	// middle of its work, as by SIGKILL or a crash.
	UncleanStop() bool
	// Describe names the store for a log, without secrets.
	Describe() string
	// Close lets the calls under way finish and gives up every lease.
	Close() error
}

// DefaultRetention is how long records are kept: the deduplication window.
const DefaultRetention = 168 * time.Hour

// ErrSetup marks an error of Open that a restart will not cure: the
// configuration, the file or the server must be changed first.
var ErrSetup = errors.New("the store is not set up right")
