package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/inboxd/inboxd/internal/testenv"
)

// broker is a RabbitMQ that answers.
type broker struct {
	url   string
	shown string // the same, without a password that is not ours
}

// findBroker takes the first that can be had: the one at AMQP_URL, a private
// one from the distribution's package, a container.
func (d *demo) findBroker(ctx context.Context) error {
	d.out.step("Broker")
	if given := d.getenv("AMQP_URL"); given != "" {
		version, err := ask(given)
		if err == nil {
			d.broker = broker{given, redact(given)}
			d.out.line("  The RabbitMQ %s at AMQP_URL, %s. The demo uses a queue of its own there.", version, redact(given))
			return nil
		}
		d.out.line("  No RabbitMQ answers at AMQP_URL, %s (%v). Going on without it.", redact(given), err)
	}
	private := d.privateBroker(ctx)
	if private == nil || ctx.Err() != nil {
		return errors.Join(private, ctx.Err())
	}
	d.out.line("  No private RabbitMQ: %v.", private)
	container := d.containerBroker(ctx)
	if container == nil || ctx.Err() != nil {
		return errors.Join(container, ctx.Err())
	}
	return fmt.Errorf(`there is no RabbitMQ to be had.
  a private one: %w
  a container: %w
  Remedy: install rabbitmq-server, or start Docker, or set AMQP_URL to a broker that runs`, private, container)
}

// privateBroker starts a node of our own, which touches no other on this
// machine. It installs the package where it is missing and that is possible.
func (d *demo) privateBroker(ctx context.Context) error {
	if _, err := testenv.RabbitBin(); errors.Is(err, testenv.ErrNotInstalled) {
		if err := d.install(ctx); err != nil {
			return err
		}
	}
	d.out.wait("  Starting a private RabbitMQ …")
	rabbit, err := testenv.StartRabbit(testenv.Options{Dir: d.dir})
	if err != nil {
		return err
	}
	d.later(rabbit.Stop)
	version, err := ask(rabbit.URL)
	if err != nil {
		return err
	}
	d.broker = broker{rabbit.URL, rabbit.URL}
	d.out.line("  A private RabbitMQ %s from this machine's package, on %s, for the time of the demo.", version, rabbit.Addr)
	return nil
}

// install gets RabbitMQ from the distribution, without starting its service.
func (d *demo) install(ctx context.Context) error {
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("RabbitMQ is %w, and there is no apt-get to install it with", testenv.ErrNotInstalled)
	}
	command := []string{"sh", filepath.Join(d.root, "internal", "testenv", "services", "install.sh"), "rabbitmq-server"}
	if os.Geteuid() != 0 {
		// -n: never ask for a password; nobody may be there to type it.
		if err := exec.CommandContext(ctx, "sudo", "-n", "true").Run(); err != nil {
			return fmt.Errorf("RabbitMQ is %w, and installing it takes root", testenv.ErrNotInstalled)
		}
		command = append([]string{"sudo", "-n"}, command...)
	}
	d.out.line("  Installing the package rabbitmq-server (once; a minute or two):")
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.WaitDelay = 10 * time.Second
	var failed bytes.Buffer
	cmd.Stderr = &failed
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("installing RabbitMQ: %w", err)
	}
	began := time.Now()
	for lines := bufio.NewScanner(pipe); lines.Scan(); {
		d.out.show(fmt.Sprintf("  %3.0f s  %.80s", time.Since(began).Seconds(), lines.Text()))
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("installing RabbitMQ: %w: %s", err, bytes.TrimSpace(failed.Bytes()))
	}
	return nil
}

const brokerImage = "rabbitmq:4"

// containerBroker starts one by Docker.
func (d *demo) containerBroker(ctx context.Context) error {
	if err := quietly(ctx, 10*time.Second, "docker", "info"); err != nil {
		return fmt.Errorf("no Docker that runs: %w", err)
	}
	name := strings.ReplaceAll(testenv.UniqueName("inboxd-demo"), "_", "-")
	d.out.line("  Starting a container of %s (the first time Docker fetches the image) …", brokerImage)
	cmd := exec.CommandContext(ctx, "docker", "run", "--detach", "--rm", "--name", name, "--publish", "127.0.0.1::5672", brokerImage)
	cmd.Stderr = d.out
	d.later(func() error { return quietly(context.Background(), 30*time.Second, "docker", "rm", "--force", name) })
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("docker run: %w", err)
	}
	out, err := exec.CommandContext(ctx, "docker", "port", name, "5672/tcp").Output()
	if err != nil {
		return fmt.Errorf("docker port: %w", err)
	}
	addr, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	d.broker.url = "amqp://guest:guest@" + addr + "/"
	d.broker.shown = d.broker.url
	for deadline := time.Now().Add(90 * time.Second); ; sleep(ctx, 500*time.Millisecond) {
		version, err := ask(d.broker.url)
		switch {
		case err == nil:
			d.out.line("  A container of RabbitMQ %s, on %s, for the time of the demo.", version, addr)
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Now().After(deadline):
			return fmt.Errorf("the broker in the container does not answer: %w", err)
		}
	}
}

// ask connects and returns the broker's version.
func ask(brokerURL string) (version string, err error) {
	conn, err := amqp.DialConfig(brokerURL, amqp.Config{Dial: amqp.DefaultDial(5 * time.Second)})
	if err != nil {
		return "", err
	}
	defer conn.Close()
	return fmt.Sprint(conn.Properties["version"]), nil
}

// publishOrders fills a queue of the demo's own.
func (d *demo) publishOrders(ctx context.Context) error {
	orders, err := makeOrders(orderCount, 7)
	if err != nil {
		return err
	}
	messages := withDuplicates(orders, duplicateCount, 7)
	conn, err := amqp.Dial(d.broker.url)
	if err != nil {
		return fmt.Errorf("connecting to the broker: %w", err)
	}
	defer conn.Close()
	d.queue = strings.ReplaceAll(testenv.UniqueName("inboxd-demo"), "_", "-")
	kind, err := declareQueue(conn, d.queue)
	if err != nil {
		return err
	}
	d.later(func() error { return testenv.DeleteQueue(d.broker.url, d.queue) })
	if err := publish(ctx, conn, d.queue, messages); err != nil {
		return err
	}
	d.out.line("  %s messages to a %s queue, each confirmed by the broker: %s orders, and %d of them a second time.",
		thousands(len(messages)), kind, thousands(len(orders)), duplicateCount)
	return nil
}

// declareQueue makes a quorum queue, or a classic one where the broker has no
// other.
func declareQueue(conn *amqp.Connection, name string) (kind string, err error) {
	for _, kind := range []string{amqp.QueueTypeQuorum, amqp.QueueTypeClassic} {
		ch, chErr := conn.Channel() // a refused declaration closes its channel
		if chErr != nil {
			return "", fmt.Errorf("opening a channel: %w", chErr)
		}
		_, err = ch.QueueDeclare(name, true, false, false, false, amqp.Table{amqp.QueueTypeArg: kind})
		if err == nil {
			return kind, ch.Close()
		}
	}
	return "", fmt.Errorf("declaring queue %s: %w", name, err)
}

func publish(ctx context.Context, conn *amqp.Connection, queue string, messages []message) error {
	ch, err := conn.Channel()
	if err != nil {
		return fmt.Errorf("opening a channel: %w", err)
	}
	if err := ch.Confirm(false); err != nil {
		return fmt.Errorf("asking for confirms: %w", err)
	}
	confirms := make([]*amqp.DeferredConfirmation, 0, len(messages))
	for _, m := range messages {
		c, err := ch.PublishWithDeferredConfirm("", queue, false, false, amqp.Publishing{
			MessageId:    m.id,
			ContentType:  "application/json",
			DeliveryMode: amqp.Persistent,
			Type:         "order.paid",
			AppId:        "webshop",
			Timestamp:    time.Now(),
			Body:         m.body,
		})
		if err != nil {
			return fmt.Errorf("publishing: %w", err)
		}
		confirms = append(confirms, c)
	}
	for _, c := range confirms {
		ok, err := c.WaitContext(ctx)
		if err != nil {
			return fmt.Errorf("waiting for the broker's confirms: %w", err)
		}
		if !ok {
			return errors.New("the broker refused a message")
		}
	}
	return nil
}

func redact(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return "(not a URL)"
	}
	return u.Redacted()
}
