package shared

import (
	"context"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/inboxd/inboxd/internal/testenv"
)

// The size of the run, and how often each process is killed in it.
const (
	crashMessages = 20_000
	daemonKills   = 50
	handlerKills  = 50
	databaseKills = 5
)

// Whatever is killed, in the middle of whatever it does: as many orders as
// messages, as many inbox rows as orders.
func TestOneEffectPerMessageWhateverIsKilled(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("kills three processes a hundred times")
	}
	queue := newQueue(t)
	pg, err := testenv.StartPostgres(testenv.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pg.Stop() })
	orderTables(t, pg.URL)

	ids := messageIDs(crashMessages)
	copies := slices.Clone(ids)
	for i := 0; i < crashMessages; i += 10 {
		copies = slices.Insert(copies, len(copies)-i/2, ids[i]) // 10 % come twice, some time apart
	}
	publish(t, queue, copies...)

	addr := testenv.FreeAddr(t)
	h := newProcess(t, "handler", []string{handlerVar + "=" + addr, databaseVar + "=" + pg.URL}, os.Args[0])
	h.start()
	d := newDaemon(t, settings{
		queue: queue, handler: "http://" + addr + "/messages", db: pg.URL,
		attempts: 1000, consumer: "    concurrency: 16\n    prefetch: 64",
	})
	d.start()

	// The kills go by what is done, so that all of them meet work.
	killEvery := func(kills int) int { return crashMessages / (kills + 1) }
	nextDaemon, nextHandler, nextDatabase := killEvery(daemonKills), killEvery(handlerKills)/2, killEvery(databaseKills)/2
	killed := struct{ daemon, handler, database int }{}
	started, stuck, last := time.Now(), time.Now(), 0
	for {
		n := ordersSoFar(pg.URL)
		if n > last {
			last, stuck = n, time.Now()
		}
		if time.Since(stuck) > 90*time.Second {
			t.Fatalf("no progress for 90s at %d orders; kills so far: %+v", last, killed)
		}
		if n >= nextDatabase && killed.database < databaseKills {
			if err := pg.Kill(); err != nil {
				t.Fatal(err)
			}
			if err := pg.Restart(); err != nil {
				t.Fatal(err)
			}
			killed.database++
			nextDatabase += killEvery(databaseKills)
		}
		if n >= nextHandler && killed.handler < handlerKills {
			h.kill()
			h.start()
			killed.handler++
			nextHandler += killEvery(handlerKills)
		}
		if n >= nextDaemon && killed.daemon < daemonKills {
			d.kill()
			d.start()
			killed.daemon++
			nextDaemon += killEvery(daemonKills)
		}
		if n >= crashMessages {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	awaitSettled(t, queue, time.Minute, d)
	t.Logf("%d messages and %d kills in %v", len(copies), killed.daemon+killed.handler+killed.database, time.Since(started).Round(time.Second))
	if killed.daemon != daemonKills || killed.handler != handlerKills || killed.database != databaseKills {
		t.Errorf("kills: got %+v, want %d, %d and %d", killed, daemonKills, handlerKills, databaseKills)
	}

	conn, err := pgx.Connect(t.Context(), pg.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	for sql, want := range map[string]int{
		`select count(*) from orders`:                 crashMessages,
		`select count(distinct order_id) from orders`: crashMessages,
		`select count(*) from inbox`:                  crashMessages,
		`select count(*) from orders o join inbox i on i.consumer = 'billing' and i.message_id = o.order_id`: crashMessages,
		// A request for a key that is there can only be one whose look-up came
		// before another request's commit: a request of a daemon that was killed.
		`select count(*) from requests where age > interval '5 seconds'`: 0,
	} {
		if got := number(t, conn, sql); got != want {
			t.Errorf("%s: got %d, want %d", sql, got, want)
		}
	}
	raced := number(t, conn, `select count(*) from requests`)
	if limit := 16 * (daemonKills + handlerKills + databaseKills); raced > limit {
		t.Errorf("requests for keys that were there: got %d, want at most those in flight at a kill, %d", raced, limit)
	}
	t.Logf("%d requests met a key that was committed after their look-up", raced)
	if got := d.parked(); len(got) != 0 {
		t.Errorf("parked: got %v, want none", got)
	}
	if code := d.stop(); code != 0 {
		t.Errorf("exit code: got %d, want 0", code)
	}
}

// ordersSoFar returns -1 while the database is down.
func ordersSoFar(db string) (n int) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, db)
	if err != nil {
		return -1
	}
	defer conn.Close(ctx)
	if err := conn.QueryRow(ctx, `select count(*) from orders`).Scan(&n); err != nil {
		return -1
	}
	return n
}
