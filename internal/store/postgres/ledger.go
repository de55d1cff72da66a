package postgres

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/inboxd/inboxd/internal/inbox"
	"github.com/inboxd/inboxd/internal/store"
)

const (
	// leaseSQL takes what is free. It takes no lock on a row that is there, so
	// that it never stands in the way of its holder.
	leaseSQL = `insert into inboxd.lease (consumer, message_id, owner)
		select $1, k, $3 from unnest($2::text[]) as k on conflict do nothing`

	// lookUpSQL answers only for keys that are recorded or held by another. The
	// lateral queries with their limit are probes of the primary keys whatever the
	// planner believes of the tables. It comes after leaseSQL: a holder that has
	// just recorded and given up its lease is seen as recorded.
	lookUpSQL = `select (k.n - 1)::int, p.fingerprint, p.processed_at,
			extract(epoch from clock_timestamp() - p.processed_at)::float8
		from unnest($2::text[]) with ordinality as k(id, n)
		left join lateral (select fingerprint, processed_at from inboxd.processed
			where consumer = $1 and message_id = k.id limit 1) as p on true
		left join lateral (select owner from inboxd.lease
			where consumer = $1 and message_id = k.id limit 1) as l on true
		where p.processed_at is not null or l.owner is distinct from $3`

	lookUpOnlySQL = `select (k.n - 1)::int, p.fingerprint, p.processed_at,
			extract(epoch from clock_timestamp() - p.processed_at)::float8
		from unnest($2::text[]) with ordinality as k(id, n)
		join lateral (select fingerprint, processed_at from inboxd.processed
			where consumer = $1 and message_id = k.id limit 1) as p on true`

	// inheritSQL takes over the leases of owners that are no more.
	inheritSQL = `update inboxd.lease as l set owner = $3 from (
			select consumer, message_id from inboxd.lease
			where ctid = any(array(select l.ctid from unnest($2::text[]) as k cross join lateral (
				select ctid from inboxd.lease where consumer = $1 and message_id = k limit 1) as l))
			and consumer = $1 and owner <> $3
			and not exists (select from inboxd.owner o where o.id = owner and o.expires_at > clock_timestamp())
			order by message_id for update skip locked) as d
		where l.consumer = d.consumer and l.message_id = d.message_id`

	// releaseSQL probes like lookUpSQL: with "message_id = any($2)" the planner, which
	// believes the table to be empty, read all leases of the consumer each time, the
	// dead ones too. A lease that another owner has taken over meanwhile has another
	// ctid, and stays.
	releaseSQL = `delete from inboxd.lease where owner = $3 and ctid = any(array(
			select l.ctid from unnest($2::text[]) as k cross join lateral (select ctid from inboxd.lease
				where consumer = $1 and message_id = k and owner = $3 limit 1) as l))`
)

var errNoID = errors.New("no message ID: such a message has no place in the ledger")

// claim is what goes through the line of the claims. Nobody waits for the last two.
type claim struct {
	*inbox.Claiming
	release inbox.Key // the claim of this key is given up
	place   *standing // this is how we stand; see stand
}

// Claim leases key, where leases are needed, and looks it up.
func (s *Store) Claim(ctx context.Context, key inbox.Key, fp inbox.Fingerprint) (inbox.Claim, error) {
	c := &inbox.Claiming{Claim: inbox.Claim{Key: key, Fingerprint: fp}}
	err := s.claims.Do(ctx, claim{Claiming: c})
	if c.Answered(err); c.Err != nil {
		return inbox.Claim{}, c.Err
	}
	return c.Claim, nil
}

// ClaimAll implements inbox.Ledger.
func (s *Store) ClaimAll(claims []*inbox.Claiming) {
	items := make([]claim, len(claims))
	for i, c := range claims {
		items[i].Claiming = c
	}
	err := s.claims.DoAll(context.Background(), items)
	for _, c := range claims {
		c.Answered(err)
	}
}

// Release gives the claim up. It goes with the next claims, in their order.
func (s *Store) Release(c inbox.Claim) {
	if s.leases() && s.hand.drop(c.Key) {
		s.claims.Put(claim{release: c.Key})
	}
}

func (s *Store) leases() bool { return s.opts.Leases != LeasesNever }

func (s *Store) flushClaims(items []claim) error {
	s.toRelease.add(items)
	asked := make([]*inbox.Claiming, 0, len(items))
	for _, c := range items {
		switch {
		case c.place != nil:
			if err := s.stand(*c.place); err != nil {
				s.log.Debug("place among the owners not taken", "store", s.where, "err", err)
			}
		case c.Claiming == nil:
		case c.Key.ID == "":
			c.Err = errNoID
		default:
			c.Err = nil
			asked = append(asked, c.Claiming)
		}
	}
	if len(asked) == 0 {
		return s.flushReleases()
	}
	s.metrics.Size(store.OpClaim, len(asked))
	sortByKey(asked, claimKey)
	err := s.answer(asked)
	if len(asked) > 1 && ofTheData(err) {
		// One of them is poison: it must not block its neighbours.
		for i, c := range asked {
			c.Err = s.answer(asked[i : i+1])
		}
		return nil
	}
	return err
}

// group is what a batch holds for one consumer, sorted by ID.
type group[T any] struct {
	consumer string
	ids      []string // each once
	items    []T
}

// answer fills in claims that are sorted by key: batches of two replicas in one
// order cannot deadlock.
func (s *Store) answer(claims []*inbox.Claiming) error {
	groups := groupsOf(claims, claimKey)
	for _, g := range groups {
		s.toRelease.keep(g.consumer, g.ids) // claimed again: not to be released any more
	}
	err := s.claimAll(groups)
	if !s.leases() {
		return err
	}
	if err == nil {
		for _, k := range s.hand.claimed(claims) {
			s.toRelease.put(k)
		}
		return nil
	}
	if !ofTheData(err) { // otherwise the server refused the key itself
		for _, c := range claims {
			s.toRelease.put(c.Key) // a lease may have been left behind
		}
	}
	return err
}

var errNotLiving = errors.New("the daemon's row among the owners of leases does not live")

// claimAll claims until the answers count; see standingSQL.
func (s *Store) claimAll(groups []group[*inbox.Claiming]) error {
	how := s.way()
	for range maxTries {
		now, held, err := s.claimOnce(groups, how)
		if err != nil || !s.leases() {
			return err
		}
		s.waits = now.othersAlone
		switch {
		case s.waits:
			hold(groups)
			return nil
		case how == looking && s.hand.isAlone() && now.alone && !now.others:
			return nil
		case how == leasing && now.live && held:
			how = inheriting // others may hold some, and perhaps they are no more
			continue
		case how != looking && now.live:
			return nil
		}
		if err := s.stand(now); err != nil {
			return err
		}
		how = s.way()
	}
	return errNotLiving
}

// way is how to claim.
type way uint8

const (
	looking    way = iota // without leases: alone, or only to see what is recorded
	leasing               // as a rule every lease is new: nobody looks whose it is
	inheriting            // takes over what dead owners hold, and tells for each key
)

func (s *Store) way() way {
	if !s.leases() || s.hand.isAlone() || s.waits {
		return looking
	}
	return leasing
}

// hold keeps what would be new from being taken by us.
func hold(groups []group[*inbox.Claiming]) {
	for _, g := range groups {
		for _, c := range g.items {
			if c.Status == inbox.ClaimNew {
				c.Status = inbox.ClaimHeld
			}
		}
	}
}

func (s *Store) claimOnce(groups []group[*inbox.Claiming], how way) (p standing, held bool, err error) {
	err = s.call(context.Background(), store.OpClaim, s.lookups, func(ctx context.Context, conn *pgx.Conn) (err error) {
		p, held, err = s.lookUp(ctx, conn, groups, how)
		return err
	})
	return p, held, err
}

// lookUp sends in one round trip what is to be released, the leases, the look-up,
// and the question how we stand. It fills in the answers and reports whether others
// may hold some of the keys.
func (s *Store) lookUp(ctx context.Context, conn *pgx.Conn, groups []group[*inbox.Claiming], how way) (p standing, held bool, err error) {
	for _, g := range groups {
		for _, c := range g.items {
			c.Claim = inbox.Claim{Key: c.Key, Fingerprint: c.Fingerprint, Status: inbox.ClaimNew}
		}
	}
	dropped := s.toRelease.all()
	beat := s.leases() && s.sinceBeat() > s.opts.LeaseTime/2
	err = s.send(ctx, conn, func(b *statements) {
		s.queueReleases(b, dropped)
		if beat {
			// Apart, so that others see it before we look.
			b.transaction(func() { s.queueBeat(b) })
		}
		b.last(func() {
			for _, g := range groups {
				answers := func(rows pgx.Rows) error { return readAnswers(rows, g, &held) }
				switch how {
				case inheriting:
					b.Queue(inheritSQL, g.consumer, g.ids, s.owner)
					b.Queue(leaseSQL, g.consumer, g.ids, s.owner)
					b.Queue(lookUpSQL, g.consumer, g.ids, s.owner).Query(answers)
					continue
				case leasing:
					b.Queue(leaseSQL, g.consumer, g.ids, s.owner).Exec(func(tag pgconn.CommandTag) error {
						held = held || tag.RowsAffected() < int64(len(g.ids))
						return nil
					})
				}
				b.Queue(lookUpOnlySQL, g.consumer, g.ids).Query(answers)
			}
			p.queue(b, s.owner)
		})
	})
	if err != nil {
		return standing{}, false, err
	}
	if beat {
		s.markBeat()
	}
	s.toRelease.done(dropped)
	return p, held, nil
}

// readAnswers gives each row to all claims of its key; both are sorted by ID.
func readAnswers(rows pgx.Rows, g group[*inbox.Claiming], held *bool) error {
	var n int
	var fp []byte
	var at *time.Time
	var age *float64
	_, err := pgx.ForEachRow(rows, []any{&n, &fp, &at, &age}, func() error {
		id := g.ids[n]
		first, _ := slices.BinarySearchFunc(g.items, id, func(c *inbox.Claiming, id string) int {
			return cmp.Compare(string(c.Key.ID), id)
		})
		for _, c := range g.items[first:] {
			if string(c.Key.ID) != id {
				break
			}
			c.Status = inbox.ClaimHeld
			if at != nil {
				recorded(&c.Claim, fp, *at, *age)
			}
		}
		*held = *held || at == nil
		return nil
	})
	return err
}

// recorded tells that c was recorded at that time.
func recorded(c *inbox.Claim, fp []byte, at time.Time, age float64) {
	var f inbox.Fingerprint
	copy(f[:], fp)
	c.Status = inbox.ClaimRecorded
	if !f.Matches(c.Fingerprint) {
		c.Status = inbox.ClaimMismatch
	}
	c.RecordedAt = at.UTC()
	c.Age = max(0, time.Duration(age*float64(time.Second)))
}

func claimKey(c *inbox.Claiming) inbox.Key { return c.Key }

func sortByKey[T any](items []T, key func(T) inbox.Key) {
	slices.SortFunc(items, func(a, b T) int {
		ka, kb := key(a), key(b)
		return cmp.Or(cmp.Compare(ka.Consumer, kb.Consumer), cmp.Compare(ka.ID, kb.ID))
	})
}

// groupsOf splits a sorted batch by consumer.
func groupsOf[T any](items []T, key func(T) inbox.Key) []group[T] {
	var groups []group[T]
	for len(items) > 0 {
		consumer, n := key(items[0]).Consumer, 1
		for n < len(items) && key(items[n]).Consumer == consumer {
			n++
		}
		ids := make([]string, n)
		for i, it := range items[:n] {
			ids[i] = string(key(it).ID)
		}
		groups = append(groups, group[T]{consumer, slices.Compact(ids), items[:n]})
		items = items[n:]
	}
	return groups
}
