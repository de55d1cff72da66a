package shared

import (
	"context"
	"slices"

	"github.com/inboxd/inboxd/internal/inbox"
)

// Lease returns a ledger that takes its leases from another ledger and its
// evidence from l, so that of two replicas one forwards a message. What leases
// has recorded, before the consumer came to shared mode, counts as processed.
func Lease(l *Ledger, leases inbox.Ledger) inbox.Ledger {
	return &leased{evidence: l, leases: leases}
}

type leased struct {
	evidence inbox.Ledger
	leases   inbox.Ledger
}

// Claim takes the lease first and looks afterwards: whoever held the lease
// before has left its evidence by then, if ever.
func (l *leased) Claim(ctx context.Context, key inbox.Key, fp inbox.Fingerprint) (inbox.Claim, error) {
	lease, err := l.leases.Claim(ctx, key, fp)
	if err != nil || lease.Status != inbox.ClaimNew {
		return lease, err
	}
	c, err := l.evidence.Claim(ctx, key, fp)
	if err != nil || c.Status != inbox.ClaimNew {
		l.leases.Release(lease)
	}
	return c, err
}

// ClaimAll implements inbox.Ledger.
func (l *leased) ClaimAll(claims []*inbox.Claiming) {
	l.leases.ClaimAll(claims)
	leased := slices.DeleteFunc(slices.Clone(claims), func(c *inbox.Claiming) bool {
		return c.Err != nil || c.Status != inbox.ClaimNew
	})
	if len(leased) == 0 {
		return
	}
	l.evidence.ClaimAll(leased)
	for _, c := range leased {
		if c.Err != nil || c.Status != inbox.ClaimNew {
			l.leases.Release(c.Claim)
		}
	}
}

// Record looks for the evidence and gives the lease up; the row is the only
// record.
func (l *leased) Record(ctx context.Context, c inbox.Claim) error {
	if err := l.evidence.Record(ctx, c); err != nil {
		return err
	}
	l.leases.Release(c)
	return nil
}

func (l *leased) Release(c inbox.Claim) { l.leases.Release(c) }
