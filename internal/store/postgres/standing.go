package postgres

import (
	"context"
	"errors"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/inboxd/inboxd/internal/inbox"
	"github.com/inboxd/inboxd/internal/store"
)

// Leases are half of what a message costs the server, and a daemon without
// replicas needs none. So a daemon may be alone: it marks its row in the table of
// owners, and claims without leases as long as no other owner is there.
//
// What keeps two daemons from both taking a key for new is what each claim looks at,
// in the round trip and after the leases of which it is made:
//
//   - A claim of a daemon that is alone counts where its row lives, says so, and no
//     other row lives.
//   - A claim of any other daemon counts where its own row lives, committed before,
//     and no living row of another says that it is alone.
//
// Two that both count would each have looked before the other's row was there, and
// each had its own there before it looked. When another daemon comes, the one that
// is alone finds it at its next claim or heartbeat, writes leases for all that it
// has in hand, and takes its mark away in the same transaction. If it died instead,
// the others wait until its row has run out.

// standing is how a daemon stands among the owners whose rows live.
type standing struct {
	live        bool // our row is one of them
	alone       bool // and says that we are alone
	others      bool // there are others
	othersAlone bool // one of which says that of itself
	readOnly    bool // the server would not take what we write
}

var errReadOnly = errors.New("the server is read-only")

const (
	standingSQL = `select coalesce(bool_or(id = $1), false), coalesce(bool_or(alone and id = $1), false),
			coalesce(bool_or(id <> $1), false), coalesce(bool_or(alone and id <> $1), false),
			current_setting('transaction_read_only')::bool
		from inboxd.owner where expires_at > clock_timestamp()`

	// aloneSQL changes nothing where somebody else is there.
	aloneSQL = `update inboxd.owner set alone = true where id = $1 and expires_at > clock_timestamp()
		and not exists (select from inboxd.owner where id <> $1 and expires_at > clock_timestamp())`

	// leaseHandSQL writes leases for what a daemon has in hand that is alone. A lease
	// that another has taken meanwhile is no claim: it saw the mark. But where our
	// row has run out, or the mark is gone already, others may have the key by right.
	leaseHandSQL = `insert into inboxd.lease (consumer, message_id, owner)
		select $1, k, $3 from unnest($2::text[]) as k
		on conflict (consumer, message_id) do update set owner = excluded.owner
		where exists (select from inboxd.owner where id = $3 and alone and expires_at > clock_timestamp())`

	unmarkSQL = "update inboxd.owner set alone = false where id = $1"
)

func (p *standing) queue(b *statements, owner string) {
	b.Queue(standingSQL, owner).QueryRow(func(row pgx.Row) error {
		err := row.Scan(&p.live, &p.alone, &p.others, &p.othersAlone, &p.readOnly)
		if err == nil && p.readOnly {
			return errReadOnly // a look-up alone would not find out
		}
		return err
	})
}

// settled reports whether a daemon that is alone, or is not, should stay so. One
// that must not be, because it was told to write leases always, never is.
func (s *Store) settled(p standing) bool {
	mayBe := s.opts.Leases == LeasesAuto && !p.others
	return p.live && p.alone == s.hand.isAlone() && p.alone == mayBe
}

// stand brings the table and what we do together where they are not. p may be out
// of date: what it asks for is checked by the server, or does no harm. Only the
// flushes of claims call it, one at a time, so that no claim is under way.
func (s *Store) stand(p standing) error {
	if s.settled(p) {
		return nil
	}
	return s.call(context.Background(), store.OpHeartbeat, s.lookups, func(ctx context.Context, conn *pgx.Conn) error {
		if p.live && !p.others && s.opts.Leases == LeasesAuto {
			return s.goAlone(ctx, conn)
		}
		return s.share(ctx, conn)
	})
}

// goAlone makes us claim without leases if nobody else is there.
func (s *Store) goAlone(ctx context.Context, conn *pgx.Conn) error {
	tag, err := conn.Exec(ctx, aloneSQL, s.owner)
	if err != nil || tag.RowsAffected() == 0 {
		return err
	}
	s.standAlone(true)
	return nil
}

// share makes us claim with leases, as others do.
func (s *Store) share(ctx context.Context, conn *pgx.Conn) error {
	keys := s.hand.withoutLease()
	sortByKey(keys, func(k inbox.Key) inbox.Key { return k })
	err := s.send(ctx, conn, func(b *statements) {
		b.last(func() {
			for _, g := range groupsOf(keys, func(k inbox.Key) inbox.Key { return k }) {
				b.Queue(leaseHandSQL, g.consumer, g.ids, s.owner)
			}
			b.Queue(unmarkSQL, s.owner)
			s.queueBeat(b)
		})
	})
	state := leaseStands
	if err != nil {
		state = leaseUnknown
	}
	for _, k := range s.hand.mark(keys, state) {
		s.toRelease.put(k)
	}
	if err != nil {
		return err
	}
	s.markBeat()
	s.standAlone(false)
	return nil
}

func (s *Store) standAlone(alone bool) {
	if s.hand.setAlone(alone) == alone {
		return
	}
	s.metrics.Leases(!alone)
	if alone {
		s.log.Info("no other daemon uses the inbox: claims go without leases", "store", s.where)
	} else {
		s.log.Info("claims go with leases: another daemon uses the inbox, or may", "store", s.where)
	}
}

// leaseState says whether a lease of ours stands for a key.
type leaseState uint8

const (
	noLease      leaseState = iota
	leaseUnknown            // to be written again before others go on, and to be given up
	leaseStands
)

// hand is what this process has claimed, and neither recorded nor given up. Safe
// for concurrent use.
type hand struct {
	mu    sync.Mutex
	alone bool
	keys  map[inbox.Key]leaseState
}

func (h *hand) isAlone() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.alone
}

// setAlone returns what was true before.
func (h *hand) setAlone(alone bool) (before bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before, h.alone = h.alone, alone
	return before
}

// claimed takes in what the ledger calls new and takes out the rest, of which it
// returns the keys for which a lease of ours stands or may stand.
func (h *hand) claimed(claims []*inbox.Claiming) (idle []inbox.Key) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.keys == nil {
		h.keys = make(map[inbox.Key]leaseState)
	}
	for _, c := range claims {
		state := h.keys[c.Key]
		if !h.alone {
			state = leaseStands
		}
		if c.Status == inbox.ClaimNew {
			h.keys[c.Key] = state
			continue
		}
		delete(h.keys, c.Key)
		if state != noLease {
			idle = append(idle, c.Key)
		}
	}
	return idle
}

// withoutLease returns the keys for which no lease is known to stand.
func (h *hand) withoutLease() (keys []inbox.Key) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for k, state := range h.keys {
		if state != leaseStands {
			keys = append(keys, k)
		}
	}
	return keys
}

// mark notes what became of the leases for keys, and returns those that are not in
// hand any more.
func (h *hand) mark(keys []inbox.Key, state leaseState) (gone []inbox.Key) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, k := range keys {
		if _, ok := h.keys[k]; ok {
			h.keys[k] = state
		} else {
			gone = append(gone, k)
		}
	}
	return gone
}

// withLease returns those keys of a group for which a lease stands or may stand.
func (h *hand) withLease(consumer string, ids []string) (with []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, id := range ids {
		if h.mayHave(inbox.Key{Consumer: consumer, ID: inbox.MessageID(id)}) {
			with = append(with, id)
		}
	}
	return with
}

// drop takes key out. It reports whether a lease stands for it, or may.
func (h *hand) drop(key inbox.Key) (leased bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	leased = h.mayHave(key)
	delete(h.keys, key)
	return leased
}

// mayHave is withLease for one key; the mutex is held. Of what is not in hand
// nothing is known, but a daemon that is alone takes no leases.
func (h *hand) mayHave(key inbox.Key) bool {
	state, ok := h.keys[key]
	return state != noLease || !ok && !h.alone
}
