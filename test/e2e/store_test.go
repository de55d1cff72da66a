package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/inboxd/inboxd/internal/testenv"
)

// privatePostgres starts a server that the test may kill.
func privatePostgres(t *testing.T) *testenv.Postgres {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a server of its own")
	}
	testenv.AMQPURL(t)
	p, err := testenv.StartPostgres(testenv.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Errorf("stopping PostgreSQL: %v", err)
		}
	})
	return p
}

// TestPostgresFaultsLoseNoRecordAndForwardNothingUnchecked kills and freezes the
// store under load.
func TestPostgresFaultsLoseNoRecordAndForwardNothingUnchecked(t *testing.T) {
	t.Parallel()
	amqpURL := testenv.AMQPURL(t)
	p := privatePostgres(t)
	q := queue(t, amqpURL, "quorum")
	const n, rounds = 6000, 6
	messages, _ := orders("pg", n, 10)
	publish(t, amqpURL, q, messages...)
	handler := newApp(t, nil)
	d := newDaemon(t, settings{
		amqp: amqpURL, queue: q, handler: handler.URL, store: p.URL,
		consumer: "    concurrency: 16\n    prefetch: 100\n",
	})
	d.start()
	for i := range rounds {
		eventually(t, 60*time.Second, "it works until the next fault", func() bool {
			keys, _ := handler.counts()
			return keys >= (i+1)*n/(rounds+2)
		})
		if i%2 == 0 {
			if err := p.Kill(); err != nil {
				t.Fatal(err)
			}
			if err := p.Restart(); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := p.Freeze(); err != nil {
			t.Fatal(err)
		}
		_, before := handler.counts()
		eventually(t, 30*time.Second, "the daemon sees that the store is frozen", func() bool {
			c, _ := d.get("/consuming")
			return c == 503
		})
		// What had been claimed before the freeze may be forwarded, no more.
		if _, after := handler.counts(); after-before > 100 {
			t.Errorf("%d requests while the store was frozen", after-before)
		}
		if err := p.Thaw(); err != nil {
			t.Fatal(err)
		}
		d.awaitConsuming(30 * time.Second)
	}
	eventually(t, 2*time.Minute, "every message is handled", func() bool { keys, _ := handler.counts(); return keys == n })
	eventually(t, time.Minute, "every delivery is settled", func() bool {
		left, _, err := testenv.QueueState(amqpURL, q)
		return err == nil && left == 0 && d.metric("inboxd_in_flight") == 0
	})
	d.stop()
	// The request is never repeated for a store error after its 2xx.
	if _, total := handler.counts(); total != n {
		t.Errorf("got %d requests for %d messages", total, n)
	}
	if left, _, err := testenv.QueueState(amqpURL, q); left != 0 || err != nil {
		t.Errorf("left on the queue: %d (%v), want 0", left, err)
	}
}

func TestAReadOnlyPostgresIsNotWrittenOffAndNotTrusted(t *testing.T) {
	t.Parallel()
	amqpURL := testenv.AMQPURL(t)
	p := privatePostgres(t)
	q := queue(t, amqpURL, "classic")
	handler := newApp(t, nil)
	d := newDaemon(t, settings{amqp: amqpURL, queue: q, handler: handler.URL, store: p.URL})
	d.start()
	d.awaitConsuming(20 * time.Second)
	sql := func(text string) {
		t.Helper()
		if err := testenv.Exec(p.URL, text); err != nil {
			t.Fatal(err)
		}
	}
	sql("alter system set default_transaction_read_only = on")
	sql("select pg_reload_conf()")
	messages, _ := orders("ro", 20, 0)
	publish(t, amqpURL, q, messages...)
	eventually(t, 30*time.Second, "the daemon stops consuming", func() bool { c, _ := d.get("/consuming"); return c == 503 })
	if got := d.outcome("processed"); got != 0 {
		t.Errorf("%d messages processed without a record", got)
	}
	p.URL += "&options=-c%20default_transaction_read_only%3Doff"
	sql("alter system reset default_transaction_read_only")
	sql("select pg_reload_conf()")
	eventually(t, 40*time.Second, "every message is processed", func() bool {
		return d.outcome("processed")+d.outcome("duplicate") >= 20
	})
	d.stop()
	if keys, total := handler.counts(); keys != 20 || total > 20+16 {
		t.Errorf("got %d keys in %d requests, want 20 in hardly more", keys, total)
	}
}

func TestSQLiteOnAFullDiskFailsClosedAndRecovers(t *testing.T) {
	amqpURL := testenv.AMQPURL(t)
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=12m"); err != nil {
		if os.Getenv("CI") != "" && os.Geteuid() == 0 {
			t.Fatalf("mounting a small tmpfs: %v", err)
		}
		t.Skipf("mounting a small tmpfs needs root: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, 0) })
	q := queue(t, amqpURL, "classic")
	handler := newApp(t, nil)
	d := newDaemon(t, settings{amqp: amqpURL, queue: q, handler: handler.URL, store: "sqlite:" + filepath.Join(dir, "inbox.db")})
	d.start()
	first, _ := orders("before", 100, 0)
	publish(t, amqpURL, q, first...)
	eventually(t, 20*time.Second, "it works", func() bool { return d.outcome("processed") == 100 })

	// Something else takes every byte, also the one that the inbox frees.
	ballast := filepath.Join(dir, "ballast")
	stop, filled := make(chan struct{}), make(chan struct{})
	go func() { defer close(filled); fill(t, ballast, stop) }()
	second, _ := orders("full", 3000, 0)
	publish(t, amqpURL, q, second...)
	eventually(t, time.Minute, "the daemon stops consuming", func() bool { c, _ := d.get("/consuming"); return c == 503 })
	_, stuck := handler.counts()
	close(stop)
	<-filled
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, "everything is handled after the space is back", func() bool { keys, _ := handler.counts(); return keys == 3100 })
	d.awaitSettled(amqpURL, q, 20*time.Second)
	d.stop()
	if _, total := handler.counts(); total > 3100+32 {
		t.Errorf("got %d requests for 3100 messages (%d when the disk was full)", total, stuck)
	}
	if left, _, err := testenv.QueueState(amqpURL, q); left != 0 || err != nil {
		t.Errorf("left on the queue: %d (%v), want 0", left, err)
	}
	if !strings.Contains(d.readLog(), "full") && !strings.Contains(d.readLog(), "space") {
		t.Error("the log does not say that the disk is full")
	}
}

// fill takes all the space of a file system until stop is closed.
func fill(t *testing.T, path string, stop <-chan struct{}) {
	f, err := os.Create(path)
	if err != nil {
		t.Error(err)
		return
	}
	defer f.Close()
	for {
		for _, chunk := range []int{64 << 10, 4 << 10, 512} {
			for {
				if _, err := f.Write(make([]byte, chunk)); err != nil {
					break
				}
			}
		}
		select {
		case <-stop:
			return
		case <-time.After(time.Millisecond):
		}
	}
}

func TestAnInboxRemovedUnderneathStopsTheDaemon(t *testing.T) {
	t.Parallel()
	amqpURL := testenv.AMQPURL(t)
	q := queue(t, amqpURL, "classic")
	handler := newApp(t, nil)
	d := newDaemon(t, settings{amqp: amqpURL, queue: q, handler: handler.URL})
	d.start()
	d.awaitConsuming(20 * time.Second)
	if err := os.Remove(filepath.Join(d.dir, "inbox.db")); err != nil {
		t.Fatal(err)
	}
	eventually(t, 30*time.Second, "the daemon stops consuming", func() bool { c, _ := d.get("/consuming"); return c == 503 })
	messages, _ := orders("gone", 5, 0)
	publish(t, amqpURL, q, messages...)
	if _, body := d.get("/consuming"); !strings.Contains(body, "inbox.db") {
		t.Errorf("/consuming does not name the file: %s", body)
	}
	d.kill()
	if got := d.outcome("processed"); got != 0 {
		t.Errorf("%d messages were recorded into nothing", got)
	}
}

func TestASecondDaemonOnTheSameFileIsRefused(t *testing.T) {
	t.Parallel()
	amqpURL := testenv.AMQPURL(t)
	q := queue(t, amqpURL, "classic")
	handler := newApp(t, nil)
	path := filepath.Join(t.TempDir(), "inbox.db")
	one := newDaemon(t, settings{amqp: amqpURL, queue: q, handler: handler.URL, store: "sqlite:" + path})
	one.start()
	one.awaitConsuming(20 * time.Second)
	two := newDaemon(t, settings{amqp: amqpURL, queue: q, handler: handler.URL, store: "sqlite:" + path})
	two.start()
	if code := two.wait(20 * time.Second); code != 1 {
		t.Errorf("exit code: got %d, want 1", code)
	}
	if log := two.readLog(); !strings.Contains(log, path) || !strings.Contains(log, "another") {
		t.Errorf("the message names neither the file nor the other daemon:\n%s", log)
	}
	if n, _ := testenv.ConsumerCount(amqpURL, q); n != 1 {
		t.Errorf("got %d consumers, want the first daemon's alone", n)
	}
	one.stop()
}

// TestTwoReplicasNeverForwardOneMessageAtTheSameTime: leases in PostgreSQL.
func TestTwoReplicasNeverForwardOneMessageAtTheSameTime(t *testing.T) {
	t.Parallel()
	amqpURL, db := testenv.AMQPURL(t), testenv.DatabaseURL(t)
	q := queue(t, amqpURL, "quorum")
	const n, copies = 300, 10
	one, _ := orders("twin", n, 0)
	messages := one
	for range copies - 1 {
		messages = append(messages, one...)
	}
	handler := newApp(t, func(http.ResponseWriter, *http.Request, string, []byte) {
		time.Sleep(2 * time.Millisecond) // a window for the other replica
	})
	s := settings{amqp: amqpURL, queue: q, handler: handler.URL, store: db}
	a, b := newDaemon(t, s), newDaemon(t, s)
	a.start()
	b.start()
	a.awaitConsuming(20 * time.Second)
	b.awaitConsuming(20 * time.Second)
	publish(t, amqpURL, q, messages...)
	eventually(t, time.Minute, "every delivery is settled", func() bool {
		sum := 0
		for _, d := range []*daemon{a, b} {
			sum += d.outcome("processed") + d.outcome("duplicate")
		}
		return sum == len(messages)
	})
	a.stop()
	b.stop()
	if keys, total := handler.counts(); keys != n || total != n {
		t.Errorf("got %d keys in %d requests, want %d in %d", keys, total, n, n)
	}
}
