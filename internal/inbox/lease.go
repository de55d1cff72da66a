package inbox

import "time"

// keptLease is a claim whose lease may be ours at the store.
type keptLease struct {
	claim Claim
	kept  bool
}

// release gives the lease up at once.
func (p *Processor) release(l *keptLease) {
	l.kept = false
	p.Ledger.Release(l.claim)
}

// leaseAfterUnknown is how long a lease is kept after the way of a delivery has
// ended without telling what the handler did or does: as long as a lease outlives
// a process that was killed.
const leaseAfterUnknown = 15 * time.Second

// releaseLater gives up, after a while, a lease that is still kept. A store that
// renews the leases of a living process would otherwise never let another replica
// have the message.
func (p *Processor) releaseLater(l keptLease) {
	if !l.kept {
		return
	}
	time.AfterFunc(leaseAfterUnknown, func() {
		if !p.flights.whileAbsent(l.claim.Key.ID, func() { p.Ledger.Release(l.claim) }) {
			p.releaseLater(l) // claimed again; should that end without a claim, this remains
		}
	})
}
