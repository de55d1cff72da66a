package consumer

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/inboxd/inboxd/internal/inbox"
)

// queueFacts is what a broker tells about a queue over AMQP. It has no call for
// it; its complaints about a wrong declaration name what is there instead.
type queueFacts struct {
	known     bool // false: the broker did not let us ask
	transient bool
	kind      string         // classic, quorum, stream, …
	arguments map[string]any // those of the declaration, not of policies
}

// impossible is a value that no queue has as its type or as its message TTL. A
// declaration with it can only fail: it differs from what is there, and where
// the queue has just vanished, the broker refuses to create such a thing.
const impossible = "inboxd-probe"

const messageTTL = "x-message-ttl"

// inequivalent matches the complaint of a broker; the queue's name in the
// middle may hold anything.
var inequivalent = regexp.MustCompile(`inequivalent arg '([^']+)' for queue .* but current is (?:(none)|the value '(.*)' of type '(\w+)'|'(.*)')$`)

// learn asks for everything that a broker reveals about an existing queue. Each
// question costs a channel, which the broker closes with 406, and a line in its
// log: this is for people who ask, not for every session. call runs an AMQP
// call under a watchdog.
func learn(conn *amqp.Connection, queue string, call func(what string, f func() error) error) (queueFacts, error) {
	facts := queueFacts{arguments: map[string]any{}}
	// First the type is the impossible one; once it is known, the message TTL,
	// which brokers compare later than most.
	args := amqp.Table{amqp.QueueTypeArg: impossible}
	for range 30 {
		err := call("examining queue "+queue, func() error {
			ch, err := conn.Channel()
			if err != nil {
				return err
			}
			defer ch.Close()
			_, err = ch.QueueDeclare(queue, !facts.transient, false, false, false, args)
			return err
		})
		var ae *amqp.Error
		if !errors.As(err, &ae) || !ae.Server {
			return facts, err
		}
		if ae.Code == amqp.AccessRefused { // asking needs the permission to configure
			return facts, nil
		}
		m := inequivalent.FindStringSubmatch(ae.Reason)
		if m == nil {
			return facts, err
		}
		if done := facts.note(m, args); done {
			return facts, nil
		}
	}
	return facts, fmt.Errorf("examining queue %s: no end of arguments", queue)
}

// note takes a complaint in and changes args to what is there, for the next
// question. It reports whether the last one is answered.
func (q *queueFacts) note(complaint []string, args amqp.Table) (done bool) {
	name, none := complaint[1], complaint[2] != ""
	value := argument(complaint[3], complaint[4])
	if complaint[4] == "" {
		value = argument(complaint[5], "")
	}
	switch name {
	case "durable":
		q.transient = true
		return false
	case amqp.QueueTypeArg:
		q.known, q.kind = true, fmt.Sprint(value)
		args[amqp.QueueTypeArg] = value
		if none {
			q.kind = amqp.QueueTypeClassic
			delete(args, amqp.QueueTypeArg)
		}
		args[messageTTL] = impossible
		return q.kind != amqp.QueueTypeClassic && q.kind != amqp.QueueTypeQuorum
	}
	if !none {
		q.arguments[name], args[name] = value, value
	}
	return none || name == messageTTL && q.known
}

// argument turns what a complaint says back into a value.
func argument(value, typ string) any {
	switch typ {
	case "bool":
		return value == "true"
	case "longstr":
		return value
	}
	// Where both sides have the argument, its type is not told.
	if n, err := strconv.ParseInt(value, 10, 64); err == nil {
		return n
	}
	return value
}

// streamOffset is the header that a stream puts on what it delivers. A message
// that was copied from a stream into another queue may have it too.
const streamOffset = "x-stream-offset"

// refuseStream ends the session where d came from a stream. It asks the broker
// only if d looks like it, once for each queue that turns out to be none.
func (s *session) refuseStream(d *inbox.Delivery) bool {
	if s.c.noStream {
		return false
	}
	if _, ok := d.Headers[streamOffset]; !ok || d.DeliveryCount >= 0 {
		return false
	}
	facts, err := learn(s.conn.Connection, s.c.opts.Queue, s.call)
	if err == nil && facts.kind == amqp.QueueTypeStream {
		s.lose(ErrStream)
		return true
	}
	s.c.noStream = err == nil
	return false
}
