package testenv

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
)

func startRabbit(t *testing.T) *Rabbit {
	t.Helper()
	r, err := StartRabbit(Options{})
	skipNotInstalled(t, err)
	t.Cleanup(func() {
		if err := r.Stop(); err != nil {
			t.Errorf("Stop: %v", err)
		}
	})
	return r
}

func startPostgres(t *testing.T) *Postgres {
	t.Helper()
	p, err := StartPostgres(Options{})
	skipNotInstalled(t, err)
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Errorf("Stop: %v", err)
		}
	})
	return p
}

func skipNotInstalled(t *testing.T, err error) {
	t.Helper()
	if errors.Is(err, ErrNotInstalled) && os.Getenv("CI") == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func publishPersistent(t *testing.T, url, queue string) {
	t.Helper()
	must(t, withChannel(url, func(ch *amqp.Channel) error {
		if err := ch.Confirm(false); err != nil {
			return err
		}
		ctx := context.Background()
		c, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", queue, true, false,
			amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte("kept")})
		if err != nil {
			return err
		}
		if ok, err := c.WaitContext(ctx); !ok || err != nil {
			return errors.Join(errors.New("not confirmed"), err)
		}
		return nil
	}))
}

func TestKilledRabbitKeepsItsMessagesAndItsPort(t *testing.T) {
	t.Parallel()
	r := startRabbit(t)
	must(t, DeclareQueue(r.URL, "orders", nil))
	publishPersistent(t, r.URL, "orders")

	// What the node wrote down of a new queue lies in its own buffers for a
	// moment, and longer on a busy machine; nothing tells when it is on disk.
	time.Sleep(5 * time.Second)
	must(t, r.Kill())
	if err := DeclareQueue(r.URL, "orders", nil); err == nil {
		t.Error("a killed broker answers")
	}
	must(t, r.Restart())

	messages, _, err := QueueState(r.URL, "orders")
	if messages != 1 || err != nil {
		t.Errorf("messages after kill and restart: got %d (%v), want 1", messages, err)
	}
	out, err := r.Ctl("list_queues", "name")
	if err != nil || !strings.Contains(string(out), "orders") {
		t.Errorf("Ctl list_queues: got %q (%v), want the queue orders", out, err)
	}
}

func TestFrozenRabbitAcceptsAndAnswersNothingUntilThawed(t *testing.T) {
	t.Parallel()
	r := startRabbit(t)
	must(t, r.Freeze())
	_, err := amqp.DialConfig(r.URL, amqp.Config{Dial: amqp.DefaultDial(500 * time.Millisecond)})
	if err == nil {
		t.Error("a frozen broker answers")
	}
	must(t, r.Thaw())
	must(t, r.tryConnect())
	must(t, r.Freeze()) // Stop must end a frozen node too
}

func TestStoppedRabbitLeavesNothing(t *testing.T) {
	t.Parallel()
	r := startRabbit(t)
	pids := append(childrenOf(r.beam.cmd.Process.Pid), r.beam.cmd.Process.Pid, r.epmd.cmd.Process.Pid)
	must(t, r.Stop())
	for _, pid := range pids {
		if alive(pid) {
			t.Errorf("process %d outlives Stop", pid)
		}
	}
	if _, err := os.Stat(r.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("directory after Stop: got %v, want none", err)
	}
	must(t, r.Stop())
}

func TestRabbitTellsWhyItDoesNotStart(t *testing.T) {
	t.Parallel()
	_, err := StartRabbit(Options{Config: "no_such_setting = 1"})
	if errors.Is(err, ErrNotInstalled) && os.Getenv("CI") == "" {
		t.Skip(err)
	}
	if err == nil || !strings.Contains(err.Error(), "no_such_setting") {
		t.Errorf("start with a wrong setting: got %v, want an error that names it", err)
	}
}

func TestAdvancedConfigReachesRabbit(t *testing.T) {
	t.Parallel()
	r, err := StartRabbit(Options{Advanced: "[{rabbit, [{channel_tick_interval, 1234}]}]."})
	skipNotInstalled(t, err)
	t.Cleanup(func() { _ = r.Stop() })
	out, err := r.Ctl("eval", "application:get_env(rabbit, channel_tick_interval).")
	if err != nil || !strings.Contains(string(out), "1234") {
		t.Errorf("channel_tick_interval: got %q (%v), want 1234", out, err)
	}
}

func TestKilledPostgresKeepsCommitsAndItsPort(t *testing.T) {
	t.Parallel()
	p := startPostgres(t)
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, p.URL)
	must(t, err)
	_, err = conn.Exec(ctx, "CREATE TABLE kept AS SELECT 1 AS n")
	must(t, err)

	must(t, p.Kill())
	if _, err := conn.Exec(ctx, "SELECT 1"); err == nil {
		t.Error("a killed server answers")
	}
	must(t, p.Restart())

	conn, err = pgx.Connect(ctx, p.URL)
	must(t, err)
	defer conn.Close(ctx)
	var n int
	must(t, conn.QueryRow(ctx, "SELECT n FROM kept").Scan(&n))
	if n != 1 {
		t.Errorf("the committed row: got %d, want 1", n)
	}
	var fsync string
	must(t, conn.QueryRow(ctx, "SHOW fsync").Scan(&fsync))
	if fsync != "on" {
		t.Errorf("fsync: got %s, want on", fsync)
	}
}

func TestFrozenPostgresAnswersNothingUntilThawed(t *testing.T) {
	t.Parallel()
	p := startPostgres(t)
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, p.URL)
	must(t, err)

	must(t, p.Freeze())
	short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	if _, err := conn.Exec(short, "SELECT 1"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("query on a connection that stood before the freeze: got %v, want %v", err, context.DeadlineExceeded)
	}
	must(t, p.Thaw())
	must(t, p.tryConnect())
	must(t, p.Freeze()) // Stop must end a frozen server too
}

func TestDatabaseURLIsADatabaseOfItsOwn(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	names := map[string]bool{}
	for range 2 {
		conn, err := pgx.Connect(ctx, DatabaseURL(t))
		must(t, err)
		defer conn.Close(ctx)
		var name string
		must(t, conn.QueryRow(ctx, "SELECT current_database()").Scan(&name))
		names[name] = true
	}
	if len(names) != 2 {
		t.Errorf("two calls: got the databases %v, want two", names)
	}
}
