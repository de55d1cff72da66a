package admin

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html/template"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/inboxd/inboxd/internal/inbox"
)

// shownBytes is how much of a body the page shows; the whole can be downloaded.
const shownBytes = 64 << 10

// bodyView is a body made readable.
type bodyView struct {
	Size int
	View string // text, json, hex
	Text string
	Cut  bool
}

// showBody renders b as asked for, or as what it looks like.
func showBody(b []byte, view string) bodyView {
	v := bodyView{Size: len(b), View: view}
	switch view {
	case "text", "json", "hex":
	default:
		v.View = guessView(b)
	}
	switch v.View {
	case "json":
		v.Text = indent(b)
	case "hex":
		if len(b) > shownBytes/4 {
			b, v.Cut = b[:shownBytes/4], true
		}
		v.Text = hex.Dump(b)
		return v
	default:
		v.Text = string(b)
	}
	if len(v.Text) > shownBytes {
		v.Text, v.Cut = v.Text[:shownBytes], true
	}
	v.Text = visible(v.Text)
	return v
}

func guessView(b []byte) string {
	switch {
	case json.Valid(b):
		return "json"
	case utf8.Valid(b) && !bytes.ContainsRune(b, 0):
		return "text"
	default:
		return "hex"
	}
}

// indent lays JSON out, and returns what is no JSON as it is.
func indent(b []byte) string {
	if len(b) > 1<<20 {
		return string(b[:1<<20])
	}
	var out bytes.Buffer
	if json.Indent(&out, b, "", "  ") != nil {
		return string(b)
	}
	return out.String()
}

// readable lays a header table out and spells its characters out.
func readable(table []byte) string {
	var v any
	dec := json.NewDecoder(bytes.NewReader(table))
	dec.UseNumber() // the digits as they are
	if len(table) > 1<<20 || dec.Decode(&v) != nil {
		return indent(table)
	}
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if enc.Encode(v) != nil {
		return indent(table)
	}
	return strings.TrimSpace(b.String())
}

// visible replaces what a browser would hide or obey: control characters,
// characters that turn the direction of text, and bytes that are not UTF-8.
func visible(s string) string {
	var b strings.Builder
	for _, c := range strings.ToValidUTF8(s, "\ufffd") {
		switch {
		case c == '\n' || c == '\t':
			b.WriteRune(c)
		case c < ' ':
			b.WriteRune(0x2400 + c) // ␀ and its kin
		case c == 0x7f:
			b.WriteRune('\u2421')
		case isBidi(c) || c >= 0x80 && c < 0xa0 || c == '\u2028' || c == '\u2029' || c == '\ufeff' || c == '\u200b':
			fmt.Fprintf(&b, "⟨U+%04X⟩", c)
		default:
			b.WriteRune(c)
		}
	}
	return b.String()
}

func propertiesOf(m *inbox.ParkedMessage) (out [][2]string) {
	p := m.Properties
	add := func(name, value string) {
		if value != "" {
			out = append(out, [2]string{name, visible(value)})
		}
	}
	add("content_type", p.ContentType)
	add("content_encoding", p.ContentEncoding)
	add("message_id", p.MessageID)
	add("correlation_id", p.CorrelationID)
	add("reply_to", p.ReplyTo)
	add("type", p.Type)
	add("app_id", p.AppID)
	add("user_id", p.UserID)
	add("expiration", p.Expiration)
	if !p.Timestamp.IsZero() {
		b, _ := Timestamp{p.Timestamp}.MarshalJSON()
		add("timestamp", strings.Trim(string(b), `"`))
	}
	if p.DeliveryMode != 0 {
		add("delivery_mode", fmt.Sprint(p.DeliveryMode))
	}
	if p.Priority != 0 {
		add("priority", fmt.Sprint(p.Priority))
	}
	return out
}

// advice says what usually helps, by why a message is kept.
func advice(m *inbox.ParkedMessage) string {
	if m.State == inbox.StateDeferred {
		return "It is tried again by itself when due. Replay tries it now."
	}
	switch m.Reason {
	case inbox.MissingID:
		return "The message has no ID, so duplicates of it cannot be told. Let the producer set one, or name another source in message_id. A replay is parked again until then."
	case inbox.Mismatch:
		return "A message with this ID but another body was processed before. If it is a resend with a changed body, discard it, or set fingerprint or on_mismatch. If it is another message, its producer reuses IDs; to process it, forget the record first, then replay."
	case inbox.HandlerReject:
		return "The handler said that this message will never do. The last answer below says why. Mend the handler or the message's origin, then replay; or discard it."
	case inbox.AttemptsUsed:
		return "Every attempt failed. The last answer below says how. A replay gives it a fresh set of attempts."
	case inbox.TooLarge:
		return "The body is larger than max_body. Raise it and restart, then replay."
	case inbox.NoEvidence:
		return "The handler answered 2xx, but its row is not in the shared table: it did not commit, or it commits later. Look into the handler before a replay."
	case inbox.DeliveryLimit:
		return "The broker would have dropped the message soon, because it was delivered so often. Something stopped in the middle again and again, perhaps because of this message."
	}
	return ""
}

var pageFuncs = template.FuncMap{
	"asset": func(name string) string { return assets[name] },
	"utc":   utc,
	"iso":   func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
	"ago":   func(t time.Time) string { return ago(time.Since(t)) },
	"secs":  func(s float64) string { return span(time.Duration(s * float64(time.Second))) },
	"num":   num,
	"rate":  rate,
	"http":  statusText,
	"vis":   func(v any) string { return visible(fmt.Sprint(v)) },
	"bytes": size,
	"path":  func(s string) string { return url.PathEscape(s) },
	"dflt":  func(s, other string) string { return orElse(s, other) },
	"words": func(s any) string { return strings.ReplaceAll(fmt.Sprint(s), "_", " ") },
	"pct":   func(n, of int) int { return percent(n, of) },
	"lookup": func(consumer string, id any) string {
		return lookupURL(inbox.Key{Consumer: consumer, ID: inbox.MessageID(fmt.Sprint(id))})
	},
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

func percent(n, of int) int {
	if of == 0 {
		return 100
	}
	return min(100, n*100/of)
}

func utc(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05") }

func ago(d time.Duration) string {
	switch {
	case d < 0:
		return "in " + span(-d)
	case d < time.Second:
		return "now"
	default:
		return span(d) + " ago"
	}
}

// span writes a duration in its largest unit, two below ten.
func span(d time.Duration) string {
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	default:
		return fmt.Sprintf("%d days", int(d.Hours()/24))
	}
}

// num writes a number with thin spaces between thousands.
func num(v any) string {
	s := fmt.Sprint(v)
	digits := strings.TrimPrefix(s, "-")
	var b strings.Builder
	for i, c := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteRune('\u202f')
		}
		b.WriteRune(c)
	}
	return s[:len(s)-len(digits)] + b.String()
}

func rate(f float64) string {
	switch {
	case f < 10 && f != float64(int(f)):
		return fmt.Sprintf("%.1f", f)
	default:
		return num(int64(f + 0.5))
	}
}

func size(n int) string {
	switch {
	case n < 1<<10:
		return countOf(n, "byte")
	case n < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	default:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
}
