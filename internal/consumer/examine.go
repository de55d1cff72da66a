package consumer

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/inboxd/inboxd/internal/inbox"
)

// report collects findings.
type report []inbox.Finding

func (r *report) ok(subject, detail string, args ...any) {
	*r = append(*r, inbox.Finding{Level: inbox.LevelOK, Subject: subject, Detail: fmt.Sprintf(detail, args...)})
}

func (r *report) warn(subject, remedy, detail string, args ...any) {
	*r = append(*r, inbox.Finding{Level: inbox.LevelWarn, Subject: subject, Detail: fmt.Sprintf(detail, args...), Remedy: remedy})
}

func (r *report) fail(subject, remedy, detail string, args ...any) {
	*r = append(*r, inbox.Finding{Level: inbox.LevelFail, Subject: subject, Detail: fmt.Sprintf(detail, args...), Remedy: remedy})
}

// Examine connects once to every node of the broker and looks at the queue, as
// far as AMQP tells. It consumes nothing, creates nothing and changes nothing.
func Examine(ctx context.Context, o Options) []inbox.Finding {
	o = o.withDefaults()
	var r report
	d := dialer{broker: o.Broker, name: "inboxd check " + o.Consumer}
	conn := examineNodes(ctx, &d, &r)
	if conn == nil {
		return r
	}
	call := func(what string, f func() error) error { return conn.link.watch(o.Broker.RPCTimeout, what, f) }
	defer func() {
		_ = call("closing the connection", conn.Close)
		conn.link.sever()
	}()
	defer context.AfterFunc(ctx, conn.link.sever)()

	subject := "queue " + o.Queue
	var q amqp.Queue
	err := call("looking at queue "+o.Queue, func() error {
		ch, err := conn.Channel()
		if err != nil {
			return err
		}
		defer ch.Close()
		q, err = ch.QueueDeclarePassive(o.Queue, true, false, false, false, nil)
		return err
	})
	if err != nil {
		r.missing(subject, o, err)
		return r
	}
	r.ok(subject, "exists; %d messages ready, %d consumers", q.Messages, q.Consumers)
	if o.EmbeddedStore && q.Consumers > 0 {
		r.warn(subject, "if one of them is not this inboxd itself: use a postgres store, which replicas share",
			"has %d consumers, and the store is a file that only this inboxd sees: a message that another consumer processed is not recognised here", q.Consumers)
	}
	facts, err := learn(conn.Connection, o.Queue, call)
	if err != nil {
		r.warn(subject, "", "its type and arguments cannot be told: %v", err)
		return r
	}
	r.queue(subject, o, facts, majorVersion(conn.Properties))
	return r
}

// examineNodes dials every URL and returns the last connection that came about.
func examineNodes(ctx context.Context, d *dialer, r *report) *connection {
	var last *connection
	for i := 0; i == 0 || i < d.count; i++ {
		d.next = i
		conn, err := d.dial(ctx)
		if err != nil {
			r.fail("broker", dialRemedy(err), "%v", err)
			continue
		}
		product, _ := conn.Properties["product"].(string)
		version, _ := conn.Properties["version"].(string)
		r.ok("broker", "%s answers: %s %s", conn.addr, product, version)
		r.certificate(conn)
		if last != nil {
			_ = last.link.watch(d.broker.RPCTimeout, "closing the connection", last.Close)
			last.link.sever()
		}
		last = conn
	}
	return last
}

// dialRemedy says what to do about a connection that did not come about.
func dialRemedy(err error) string {
	var (
		dns       *net.DNSError
		notTLS    tls.RecordHeaderError
		authority x509.UnknownAuthorityError
		host      x509.HostnameError
		expired   x509.CertificateInvalidError
	)
	switch {
	case kindOf(err).hint() != "":
		return kindOf(err).hint()
	case errors.As(err, &dns):
		return "there is no host of this name here: mend broker.url (from inside a container, the name of another one needs a common network)"
	case errors.As(err, &notTLS):
		return "the port speaks no TLS: write amqp in broker.url, or the port of the broker's TLS listener (5671 by default)"
	case errors.As(err, &authority):
		return "name the authority that signed the broker's certificate in broker.tls.ca_file"
	case errors.As(err, &host):
		return "use a host name in broker.url that the broker's certificate is for"
	case errors.As(err, &expired):
		return "renew the broker's certificate, and check the clock of this machine"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "start the broker, or mend host and port in broker.url; inboxd run waits for a broker that is not there yet"
	case errors.Is(err, errNoAnswer):
		return "check that this is the broker's AMQP port (5672, not 15672 of the management page), and that no firewall drops the packets"
	default:
		return "mend broker.url, or the network between; inboxd run tries again for ever"
	}
}

func (r *report) certificate(c *connection) {
	conn, ok := c.link.Conn.(*tls.Conn)
	if !ok {
		return
	}
	const soon = 14 * 24 * time.Hour
	for _, cert := range conn.ConnectionState().PeerCertificates {
		if left := time.Until(cert.NotAfter); left < soon {
			r.warn("broker", "renew it", "the certificate of %s expires on %s", cert.Subject.CommonName, cert.NotAfter.Format(time.DateOnly))
		}
	}
}

func (r *report) missing(subject string, o Options, err error) {
	var ae *amqp.Error
	code := 0
	if errors.As(err, &ae) && ae.Server {
		code = ae.Code
	}
	switch {
	case code == amqp.NotFound && o.Declare != nil:
		r.ok(subject, "does not exist; it will be declared")
	case code == amqp.NotFound:
		r.fail(subject, "create the queue and bind it, or let inboxd declare it (`declare: {type: quorum}` at the consumer)", "does not exist in this virtual host")
	case code == amqp.ResourceLocked:
		r.fail(subject, "declare it without `exclusive`", "belongs to another connection alone")
	default:
		r.fail(subject, kindOf(err).hint(), "%v", err)
	}
}

// queue judges what is known of the queue.
func (r *report) queue(subject string, o Options, q queueFacts, major int) {
	if q.transient {
		r.warn(subject, "declare it durable", "is not durable: it is gone with its messages when its node restarts")
	}
	if !q.known {
		r.warn(subject, "grant the user `configure` on the queue for the time of the check, or look at the queue with rabbitmqctl",
			"its type and arguments cannot be told: the broker reveals them only to users who may configure the queue")
		return
	}
	if q.kind == amqp.QueueTypeStream {
		r.fail(subject, "bind a classic or quorum queue to the exchange beside the stream", "%v", ErrStream)
		return
	}
	r.ok(subject, "is a %s queue", q.kind)
	if o.Declare != nil && o.Declare.Type != "" && o.Declare.Type != q.kind {
		r.fail(subject, "set the type in the configuration to what the queue is", "is a %s queue, and would be declared as %s", q.kind, o.Declare.Type)
	}

	dlx, hasDLX := q.arguments["x-dead-letter-exchange"].(string)
	policy := "a policy may set one, which cannot be told over AMQP"
	switch {
	case hasDLX:
		r.ok(subject, "dead-letters to exchange %q", dlx)
	case q.kind == amqp.QueueTypeQuorum && major >= 4:
		r.warn(subject, "set a dead-letter exchange, or a delivery limit of -1, by policy",
			"has no dead-letter exchange of its own (%s): without one, a message is deleted after its delivery limit, 20 by default", policy)
	case q.kind == amqp.QueueTypeQuorum:
		r.warn(subject, "set a dead-letter exchange by policy where the queue has a delivery limit",
			"has no dead-letter exchange of its own (%s): without one, a delivery limit deletes messages; RabbitMQ before 4.0 has no limit unless one is set, and does not reveal it over AMQP", policy)
	default:
		r.ok(subject, "has no dead-letter exchange of its own (%s); inboxd never rejects a message unless on_missing_id says so", policy)
	}
	if ttl, ok := q.arguments["x-message-ttl"].(int64); ok {
		r.ttl(subject, time.Duration(ttl)*time.Millisecond, o.Retention)
	}
	if sac, _ := q.arguments["x-single-active-consumer"].(bool); sac {
		r.ok(subject, "has a single active consumer: replicas stand by, connected and idle")
	}
	if limit, ok := q.arguments["x-delivery-limit"]; ok {
		r.ok(subject, "has a delivery limit of %v", limit)
	}
}

func (r *report) ttl(subject string, ttl, retention time.Duration) {
	if retention > 0 && ttl > retention {
		r.warn(subject, "set retention above the queue's message TTL",
			"keeps messages for up to %s, longer than records are kept (%s): a duplicate that waits longer is not recognised", ttl, retention)
		return
	}
	r.ok(subject, "drops or dead-letters messages that have waited for %s", ttl)
}

func majorVersion(properties amqp.Table) int {
	version, _ := properties["version"].(string)
	head, _, _ := strings.Cut(version, ".")
	n, _ := strconv.Atoi(head)
	return n
}

// Examine connects and looks whether the parking exchange is there. Whether a
// queue is bound to it shows only when a message is parked.
func (p *Publisher) Examine(ctx context.Context) []inbox.Finding {
	var r report
	subject := fmt.Sprintf("parking exchange %q", p.opts.Exchange)
	d := dialer{broker: p.opts.Broker, name: p.dialer.name}
	conn, err := d.dial(ctx)
	if err != nil {
		r.fail(subject, kindOf(err).hint(), "%v", err)
		return r
	}
	defer conn.link.sever()
	defer context.AfterFunc(ctx, conn.link.sever)()
	var messages int
	err = conn.link.watch(p.opts.Broker.RPCTimeout, "looking at it", func() error {
		ch, err := conn.Channel()
		if err != nil {
			return err
		}
		if p.opts.Exchange == "" { // routes to the queue of that name
			q, err := ch.QueueDeclarePassive(p.opts.RoutingKey, true, false, false, false, nil)
			messages = q.Messages
			return err
		}
		return ch.ExchangeDeclarePassive(p.opts.Exchange, "", true, false, false, false, nil)
	})
	switch {
	case err != nil:
		r.fail(subject, "create it and bind a queue to it", "%v", err)
	case p.opts.Exchange == "":
		r.ok(subject, "routes to queue %s, which holds %d messages", p.opts.RoutingKey, messages)
	default:
		r.ok(subject, "exists; whether a queue is bound to it for routing key %q shows only when a message is parked", p.opts.RoutingKey)
	}
	return r
}
