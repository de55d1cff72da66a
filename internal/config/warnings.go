package config

import (
	"fmt"
	"time"
)

// Warnings returns what is allowed but probably not meant.
func (c Config) Warnings() []Problem {
	var w []Problem
	warn := func(path, format string, args ...any) {
		w = append(w, Problem{Path: path, Text: fmt.Sprintf(format, args...)})
	}
	for i, u := range c.Broker.Addresses() {
		path := "broker.url"
		if len(c.Broker.URLs) > 0 {
			path = fmt.Sprintf("broker.urls[%d]", i)
		}
		if parsed, err := u.Parse(); err == nil && parsed.User.Username() == "guest" && !isLoopback(parsed.Hostname()) {
			warn(path, "the user guest may only log in from the broker's own host, unless the broker is set otherwise")
		}
	}
	if c.Store.Retention < day {
		warn("store.retention", "a message that is delivered again after more than %s is processed again", formatDuration(c.Store.Retention))
	}
	queues := map[string]string{}
	for i := range c.Consumers {
		path := fmt.Sprintf("consumers[%d]", i)
		c.Consumers[i].warnings(path, warn)
		if other := queues[c.Consumers[i].Queue]; other != "" {
			warn(path+".queue", "%s consumes from the same queue: each of the two gets a part of the messages, not all of them", other)
		}
		queues[c.Consumers[i].Queue] = path
	}
	if c.MaxInHand != SizeAuto {
		w = append(w, c.WarnInHand(int64(c.MaxInHand))...)
	}
	return w
}

// InHandShare is each consumer's part of so many bytes for messages in hand. The
// parts are equal, so that a handler that is stuck takes nothing from the others.
func (c Config) InHandShare(bytes int64) int64 {
	return max(1, bytes/int64(max(1, len(c.Consumers))))
}

// WarnInHand returns the consumers whose largest messages do not fit into their
// share of so many bytes.
func (c Config) WarnInHand(bytes int64) []Problem {
	var w []Problem
	share := c.InHandShare(bytes)
	for i, cc := range c.Consumers {
		if int64(cc.MaxBody) > share {
			w = append(w, Problem{Path: fmt.Sprintf("consumers[%d].max_body", i), Text: fmt.Sprintf(
				"%s is more than the consumer's share of max_in_hand (%d bytes of %d): a message of that size is taken alone, and takes more memory than planned",
				cc.MaxBody, share, bytes)})
		}
	}
	return w
}

func (c Consumer) warnings(path string, warn func(path, format string, args ...any)) {
	for _, parts := range c.MessageID {
		if len(parts) == 1 && parts[0].Kind == "sha256" {
			warn(path+".message_id", "with sha256, two different messages of equal bodies are one: the second is dropped as a duplicate")
		}
	}
	if c.OnMissingID == OnMissingIDForward {
		warn(path+".on_missing_id", "with forward, a message without an ID is neither recorded nor recognised again")
	}
	if c.OnMissingID == OnMissingIDReject {
		warn(path+".on_missing_id", "with reject, the broker deletes a message without an ID, unless the queue has a dead-letter exchange")
	}
	if c.OnMismatch == OnMismatchAck {
		warn(path+".on_mismatch", "with ack, a message that reuses an ID for another body is dropped")
	}
	if c.Forward.Timeout < time.Second {
		warn(path+".forward.timeout", "%s is short: a handler that answers later has done its work for nothing", formatDuration(c.Forward.Timeout))
	}
	if parsed, err := c.Forward.URL.Parse(); err == nil && parsed.Scheme == "http" && !isLoopback(parsed.Hostname()) && (c.Forward.TokenFile != "" || parsed.User != nil) {
		warn(path+".forward.url", "the token goes to %s in the clear; use https", parsed.Hostname())
	}
}
