package consumer

import (
	"context"
	"errors"
	"net"
	"syscall"

	amqp "github.com/rabbitmq/amqp091-go"
)

// errSetup marks a mistake in the configuration that no reconnect cures.
var errSetup = errors.New("set-up")

// ErrStream is why a session on a stream queue ends: acks do not remove
// messages from a stream, so that every reconnect would read from elsewhere.
var ErrStream = errors.New("the queue is a stream: inboxd consumes classic and quorum queues only")

// errCancelled is why a session ends whose consumer the broker removed.
var errCancelled = errors.New("the broker cancelled the consumer: its queue was deleted, moved, or held a delivery for too long")

// isStop reports whether err only says that work was called off.
func isStop(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// kind sorts failures by what to do about them. Its string is a log attribute.
type kind string

const (
	kindNetwork   kind = "network"   // try again, with backoff
	kindRefused   kind = "refused"   // nobody listens: cheap to try, so try often
	kindNoAnswer  kind = "no_answer" // a watchdog closed the socket
	kindAccess    kind = "access"    // credentials, permissions, limits: slowly, or an account gets locked
	kindCancelled kind = "cancelled" // the broker ended the consumer: what for shows at the next try
	kindTopology  kind = "topology"  // the queue is missing, exclusive or different: a person must act, and soon sees the effect
	kindSetup     kind = "setup"     // our own configuration
	kindBroker    kind = "broker"    // the broker closed: restart, operator, internal error
)

func kindOf(err error) kind {
	if errors.Is(err, errSetup) || errors.Is(err, ErrStream) {
		return kindSetup
	}
	if errors.Is(err, errNoAnswer) {
		return kindNoAnswer
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		return kindRefused
	}
	if errors.Is(err, errCancelled) {
		return kindCancelled
	}
	var ae *amqp.Error
	if errors.As(err, &ae) {
		switch ae.Code {
		case amqp.AccessRefused, amqp.NotAllowed:
			return kindAccess
		case amqp.NotFound, amqp.ResourceLocked, amqp.PreconditionFailed:
			if ae.Server {
				return kindTopology
			}
		}
		if ae.Server {
			return kindBroker
		}
	}
	var ne net.Error
	if errors.As(err, &ne) && ne.Timeout() {
		return kindNoAnswer
	}
	return kindNetwork
}

// hint says in words what a person can do about a failure of kind k.
func (k kind) hint() string {
	switch k {
	case kindAccess:
		return "check user, password, virtual host, permissions and connection limits at the broker"
	case kindTopology:
		return "check that the queue exists, is not exclusive to another connection, and matches the configuration"
	case kindSetup:
		return "check the configuration"
	default:
		return ""
	}
}
