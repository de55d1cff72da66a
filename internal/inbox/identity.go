package inbox

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
)

// SourceKind says where an ID is looked for. Its values are the words of the
// configuration.
type SourceKind string

// The kinds.
const (
	// SourceProperty is the AMQP property message_id, or the one that Arg names:
	// "message_id" or "correlation_id".
	SourceProperty SourceKind = "property"
	// SourceHeader is the header named Arg: the exact name, else the only name
	// that differs by case alone.
	SourceHeader SourceKind = "header"
	// SourceJSON is the string or number that Arg, an RFC 6901 pointer, points
	// at in the body.
	SourceJSON SourceKind = "json"
	// SourceCloudEvents is the event's source and id, joined like a composite.
	SourceCloudEvents SourceKind = "cloudevents"
	// SourceSHA256 is the SHA-256 of the body in hexadecimal.
	SourceSHA256 SourceKind = "sha256"
)

// Source is one place to look for an ID.
type Source struct {
	Kind SourceKind
	Arg  string
}

// FingerprintMode says what of a message tells two bodies apart.
type FingerprintMode string

// The modes. The zero value is FingerprintBody.
const (
	FingerprintBody FingerprintMode = "body"
	FingerprintJSON FingerprintMode = "json" // the value that FingerprintPointer points at
	FingerprintNone FingerprintMode = "none"
)

// Identity knows what identifies the messages of one consumer.
type Identity struct {
	// Sources are tried in order. Each is a list: one source, or the parts of a
	// composite, which has an ID only where every part has one.
	Sources [][]Source

	Fingerprint        FingerprintMode
	FingerprintPointer string // RFC 6901, for FingerprintJSON
}

// MessageID returns the canonical ID of m from the first source that has one;
// ok is false where none has. An empty ID is none: a producer that sets nothing
// sends "", and as a key that would make one message of all of them.
func (i Identity) MessageID(m *Message) (id MessageID, ok bool) {
	doc := document{body: m.Body}
	for _, parts := range i.Sources {
		if raw, ok := composite(parts, m, &doc); ok {
			return CanonicalString(raw), true
		}
	}
	return "", false
}

func composite(parts []Source, m *Message, doc *document) (raw string, ok bool) {
	if len(parts) == 1 {
		return parts[0].raw(m, doc)
	}
	raws := make([]string, len(parts))
	for i, s := range parts {
		if raws[i], ok = s.raw(m, doc); !ok {
			return "", false
		}
	}
	return join(raws...), len(raws) > 0
}

// raw returns the bytes of the ID that s finds in m; ok is false where there is
// none, or an empty one.
func (s Source) raw(m *Message, doc *document) (raw string, ok bool) {
	switch s.Kind {
	case SourceProperty:
		if s.Arg == "correlation_id" {
			raw = m.Properties.CorrelationID
		} else {
			raw = m.Properties.MessageID
		}
	case SourceHeader:
		raw = idText(m.Headers.lookup(s.Arg))
	case SourceJSON:
		raw = doc.scalar(s.Arg)
	case SourceCloudEvents:
		return cloudEventID(m, doc)
	case SourceSHA256:
		sum := sha256.Sum256(m.Body)
		raw = hex.EncodeToString(sum[:])
	}
	return raw, raw != ""
}

// join makes one ID of several, by a space. A space inside a part is written
// %20, and a %20 or %25 in it %2520 or %2525, so that ("a b", "c") and
// ("a", "b c") stay two IDs; every other part goes in as it is.
func join(parts ...string) string {
	var b strings.Builder
	for i, p := range parts {
		if i > 0 {
			b.WriteByte(' ')
		}
		escapePart(&b, p)
	}
	return b.String()
}

func escapePart(b *strings.Builder, p string) {
	if !strings.ContainsAny(p, " %") {
		b.WriteString(p)
		return
	}
	for i := range len(p) {
		switch rest := p[i:]; {
		case p[i] == ' ':
			b.WriteString("%20")
		case strings.HasPrefix(rest, "%20"), strings.HasPrefix(rest, "%25"):
			b.WriteString("%25")
		default:
			b.WriteByte(p[i])
		}
	}
}

// lookup returns the header of that name, else the only one whose name differs
// by case alone, else nil: of two such names neither is the right one.
func (t Table) lookup(name string) any {
	if v, ok := t[name]; ok {
		return v
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
		return nil
	}
	return found
}

// idText returns a header's value as an ID: strings and byte strings as their
// bytes, integers as decimal digits, "" for any other type.
func idText(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return v
	case []byte:
		return string(v)
	case int64:
		return strconv.FormatInt(v, 10)
	case int32:
		return strconv.FormatInt(int64(v), 10)
	}
	var buf [20]byte
	digits, ok := appendInteger(buf[:0], v)
	if !ok {
		return ""
	}
	return string(digits)
}
