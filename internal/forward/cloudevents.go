package forward

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
)

// The prefixes of CloudEvents attributes in AMQP headers: the two of the AMQP
// binding, the HTTP one, and none, as Knative sends them.
var cePrefixes = []string{"cloudEvents:", "cloudEvents_", "ce-", ""}

// cloudEvent says how the attributes of a message in binary mode are found. The
// zero value means that the message is no such event.
type cloudEvent struct {
	is          bool
	prefix      string
	contentType string // the attribute datacontenttype
}

// findCloudEvent recognises a CloudEvent in binary mode by its four required
// attributes.
func findCloudEvent(t inbox.Table) cloudEvent {
	if len(t) < 4 {
		return cloudEvent{}
	}
prefixes:
	for _, p := range cePrefixes {
		for _, name := range []string{"specversion", "id", "source", "type"} {
			if s, ok := textOf(t[p+name]); !ok || s == "" {
				continue prefixes
			}
		}
		ct, _ := textOf(t[p+"datacontenttype"])
		return cloudEvent{is: true, prefix: p, contentType: strings.Trim(ct, " \t")}
	}
	return cloudEvent{}
}

// cloudEvent appends the attributes as the HTTP binding wants them: each value
// percent-encoded where it needs to be, and never datacontenttype, which is the
// Content-Type.
func (c *collector) cloudEvent(t inbox.Table, ce cloudEvent) {
	if !ce.is {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(t)) {
		attr, ok := strings.CutPrefix(name, ce.prefix)
		if !ok || !isCEAttribute(attr) || attr == "datacontenttype" || attr == "data" {
			continue
		}
		if text, ok := ceText(t[name]); ok && text != "" {
			c.add("Ce-"+strings.ToUpper(attr[:1])+attr[1:], ceEncode(text))
		}
	}
}

// isCEAttribute reports whether s is an attribute name: lower-case letters and
// digits. The specification asks for 20 at most; senders differ.
func isCEAttribute(s string) bool {
	if s == "" || len(s) > 64 {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}

func ceText(v any) (string, bool) {
	switch v := v.(type) {
	case string, []byte:
		return textOf(v)
	case bool:
		return strconv.FormatBool(v), true
	case time.Time:
		return timeText(v), true
	}
	return integerText(v)
}

func ceEncode(s string) string {
	return percentEncodeIf(s, func(c byte) bool { return c < '!' || c > '~' || c == '%' || c == '"' })
}
