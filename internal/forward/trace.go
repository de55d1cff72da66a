package forward

import (
	"strings"

	"github.com/inboxd/inboxd/internal/inbox"
)

const (
	maxTraceState   = 512
	maxTraceMembers = 32
	maxBaggage      = 512
)

// trace appends the W3C trace headers of the producer where they are well
// formed: what a message says must not poison a trace or swell every request
// downstream.
func (c *collector) trace(t inbox.Table) {
	if parent, ok := foldedText(t, "traceparent"); ok && isTraceParent(parent) {
		c.add("Traceparent", parent)
		if state, ok := foldedText(t, "tracestate"); ok && isTraceState(state) {
			c.add("Tracestate", state)
		}
	}
	if b, ok := foldedText(t, "baggage"); ok {
		if b = capBaggage(b); b != "" {
			c.add("Baggage", b)
		}
	}
}

// foldedText returns the text under name, or else under the one name that
// differs from it only by case.
func foldedText(t inbox.Table, name string) (string, bool) {
	if v, ok := t[name]; ok {
		return textOf(v)
	}
	var found any
	n := 0
	for k, v := range t {
		if len(k) == len(name) && strings.EqualFold(k, name) {
			found = v
			n++
		}
	}
	if n != 1 {
		return "", false
	}
	return textOf(found)
}

// isTraceParent checks version-traceid-parentid-flags. Later versions may have
// more behind that.
func isTraceParent(s string) bool {
	const size = len("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	if len(s) < size || len(s) > 4*size || s[2] != '-' || s[35] != '-' || s[52] != '-' {
		return false
	}
	version, trace, parent, flags := s[:2], s[3:35], s[36:52], s[53:size]
	if !isLowerHex(version) || !isLowerHex(trace) || !isLowerHex(parent) || !isLowerHex(flags) {
		return false
	}
	if version == "ff" || strings.Trim(trace, "0") == "" || strings.Trim(parent, "0") == "" {
		return false
	}
	if len(s) > size {
		return version != "00" && s[size] == '-' && isPlainValue(s)
	}
	return true
}

func isLowerHex(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

func isTraceState(s string) bool {
	if len(s) > maxTraceState || !isPlainValue(s) || strings.Count(s, ",") >= maxTraceMembers {
		return false
	}
	return allMembers(s)
}

// allMembers reports whether s is a list of key=value.
func allMembers(s string) bool {
	for m := range strings.SplitSeq(s, ",") {
		if i := strings.IndexByte(m, '='); i < 1 || strings.TrimSpace(m[:i]) == "" {
			return false
		}
	}
	return true
}

// capBaggage returns s, or as many of its members as fit, or "" where it is not
// well formed.
func capBaggage(s string) string {
	if !isPlainValue(s) || !allMembers(s) {
		return ""
	}
	if len(s) <= maxBaggage {
		return s
	}
	i := strings.LastIndexByte(s[:maxBaggage+1], ',')
	if i < 0 {
		return ""
	}
	return strings.TrimRight(s[:i], " ")
}
