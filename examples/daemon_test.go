package examples

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/inboxd/inboxd/internal/testenv"
)

// behindDaemon lets the real daemon feed the recipe in shared mode: messages,
// duplicates among them, and the recipe killed in the middle.
func (s *running) behindDaemon(t *testing.T, inboxd, amqpURL, db string, conn *pgx.Conn) {
	t.Helper()
	const messages = 200
	queue := testenv.UniqueName("recipe")
	if err := testenv.DeclareQueue(amqpURL, queue, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = testenv.DeleteQueue(amqpURL, queue) })
	publish(t, amqpURL, queue, messages)

	dir := t.TempDir()
	config := filepath.Join(dir, "inboxd.yaml")
	err := os.WriteFile(config, fmt.Appendf(nil, `broker: {url: "%s"}
store: {url: "sqlite:%s"}
consumers:
  - name: orders
    queue: %s
    concurrency: 8
    retry: {initial: 20ms, max: 500ms}
    inbox: {url: "%s"}
    forward: {url: "%s/messages"}
metrics: {listen: ""}
admin: {listen: ""}
`, amqpURL, filepath.Join(dir, "inbox.db"), queue, db, s.url), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	daemon := exec.CommandContext(t.Context(), inboxd, "run", "-c", config)
	daemon.Stdout, daemon.Stderr = log, log
	daemon.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	defer daemon.Wait()

	orders := func(what string) (n int) {
		if err := conn.QueryRow(t.Context(), "select count("+what+") from orders where customer = 'Ada of the queue'").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	killed := false
	deadline := time.Now().Add(90 * time.Second)
	for n := 0; n < messages && time.Now().Before(deadline); n = orders("*") {
		if n > messages/3 && !killed {
			s.kill(t)
			if out, err := s.shell(context.WithoutCancel(t.Context()), s.start); err != nil {
				t.Fatalf("starting again: %v\n%s", err, out)
			}
			killed = true
		}
		time.Sleep(5 * time.Millisecond)
	}
	// A stop in good order returns what is not done, so that what is left on the
	// queue was not acked.
	_ = daemon.Process.Signal(syscall.SIGTERM)
	_ = daemon.Wait()
	if all, different := orders("*"), orders("distinct order_id"); all != messages || different != messages {
		raw, _ := os.ReadFile(log.Name())
		t.Errorf("behind the daemon: got %d orders, %d different, want %d\n%s", all, different, messages, raw)
	}
	if !killed {
		t.Error("the recipe was not killed: everything was done before")
	}
}

func publish(t *testing.T, amqpURL, queue string, messages int) {
	t.Helper()
	conn, err := amqp.Dial(amqpURL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	var last *amqp.DeferredConfirmation
	for i := range messages + messages/10 {
		id := fmt.Sprintf("q-%d", i%messages) // the first tenth comes twice
		last, err = ch.PublishWithDeferredConfirmWithContext(t.Context(), "", queue, true, false, amqp.Publishing{
			MessageId: id, ContentType: "application/json", DeliveryMode: amqp.Persistent,
			Body: fmt.Appendf(nil, `{"order_id": %q, "customer": "Ada of the queue", "amount_cents": 1999}`, id),
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if !last.Wait() {
		t.Fatal("publish was not confirmed")
	}
}
