package forward

import (
	"maps"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/inboxd/inboxd/internal/inbox"
)

// The limits of everything that a message puts into the header: gunicorn, nginx
// and Node refuse more, and the refusal looks like a bad message.
const (
	maxFieldBytes  = 4 << 10 // one field with its name
	maxMappedBytes = 8 << 10
	maxMapped      = 60 // fields
	// Kept free for Amqp-Headers-Omitted, and the start of Amqp-Encoded.
	reservedBytes  = len("Amqp-Headers-Omitted: 000000\r\n") + len("Amqp-Encoded: \r\n")
	reservedFields = 2
)

const defaultContentType = "application/octet-stream"

// field is one header field. The name is in canonical form and the value fit to
// be sent, both guaranteed by where fields are made.
type field struct{ name, value string }

// mapper turns deliveries into header fields. What is the same for every request
// of a consumer is prepared once.
type mapper struct {
	constant    []field
	contentType string // "": the message's own
	quoted      bool
	names       names
}

func newMapper(o *Options) *mapper {
	return &mapper{
		constant: []field{
			{"Inbox-Consumer", o.ConsumerName},
			{"User-Agent", "inboxd"},
		},
		contentType: o.ContentType,
		quoted:      o.IdempotencyKey == KeyQuoted,
	}
}

// fields returns the header of the next request for d, without what the
// transport adds itself. Equal deliveries have equal fields in equal order, so
// that what the limits leave out does not change between attempts.
func (m *mapper) fields(d *inbox.Delivery) []field { return m.collect(new(collector), d) }

// collect is fields in the memory of c, and good for as long as nobody else uses
// that.
func (m *mapper) collect(c *collector, d *inbox.Delivery) []field {
	*c = collector{fields: append(c.fields[:0], m.constant...), encoded: c.encoded[:0], entries: c.entries[:0]}
	m.own(c, d)
	ce := findCloudEvent(d.Headers)
	m.content(c, d, ce)
	c.properties(&d.Message)
	if len(d.Headers) > 0 {
		c.table(d.Headers, ce, &m.names)
	}
	c.finish()
	return c.fields
}

// own appends what inboxd says itself.
func (m *mapper) own(c *collector, d *inbox.Delivery) {
	if d.ID != "" {
		c.plain("Idempotency-Key", m.key(d.ID))
	}
	c.plain("Inbox-Attempt", strconv.Itoa(d.Requests+1))
	c.plain("Inbox-Redelivered", strconv.FormatBool(d.Redelivered))
	if !d.Fingerprint.IsZero() {
		c.plain("Inbox-Fingerprint", d.Fingerprint.String())
	}
}

var quoteKey = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

func (m *mapper) key(id inbox.MessageID) string {
	// A canonical ID needs no encoding. Should one that is not get here, it must
	// not break the request: that would block the queue.
	s := string(id)
	if !isPlainValue(s) {
		s = percentEncode(s)
	}
	if m.quoted {
		return `"` + quoteKey.Replace(s) + `"`
	}
	return s
}

// content appends Content-Type and Content-Encoding. What of the message's own
// cannot stand there moves into Amqp-….
func (m *mapper) content(c *collector, d *inbox.Delivery, ce cloudEvent) {
	own := strings.Trim(d.Properties.ContentType, " \t")
	if own == "" {
		own = ce.contentType
	}
	switch {
	case m.contentType != "":
		c.plain("Content-Type", m.contentType)
		if own != m.contentType {
			c.property("Amqp-Content-Type", own)
		}
	case own == "":
		c.plain("Content-Type", defaultContentType)
	case isPlainValue(own):
		c.plain("Content-Type", own)
	default:
		c.plain("Content-Type", defaultContentType)
		c.property("Amqp-Content-Type", own)
	}
	switch coding := strings.Trim(d.Properties.ContentEncoding, " \t"); strings.ToLower(coding) {
	case "gzip", "deflate", "br", "zstd", "compress":
		c.plain("Content-Encoding", coding)
	default:
		c.property("Amqp-Content-Encoding", d.Properties.ContentEncoding)
	}
}

// collector gathers fields and keeps the limits.
type collector struct {
	fields  []field
	mapped  int // fields from the message
	bytes   int // their size
	encoded []string
	encSize int // size of the names in encoded
	omitted int
	entries []entry // of the header table; scratch
}

var collectors = sync.Pool{New: func() any { return new(collector) }}

// free gives c back. Nothing of a message stays in it.
func (c *collector) free() {
	clear(c.fields)
	clear(c.entries)
	if cap(c.fields) <= 2*maxMapped && cap(c.entries) <= 2*maxMapped {
		collectors.Put(c)
	}
}

// plain appends a field of ours, which the limits do not touch.
func (c *collector) plain(name, value string) {
	c.fields = append(c.fields, field{name, value})
}

// add appends a field from the message whose value is fit to be sent, or counts
// it as left out.
func (c *collector) add(name, value string) bool {
	size := fieldSize(name, value)
	if size > maxFieldBytes || c.mapped+1 > maxMapped-reservedFields ||
		c.bytes+size > maxMappedBytes-reservedBytes {
		c.omitted++
		return false
	}
	c.mapped++
	c.bytes += size
	c.fields = append(c.fields, field{name, value})
	return true
}

// text appends a field from the message, encoded where its value needs it.
func (c *collector) text(name, value string) {
	if isPlainValue(value) {
		c.add(name, value)
		return
	}
	// The value's length is a lower bound: do not encode in vain.
	entry := len(name) + len(", ")
	if len(value) > maxFieldBytes || c.encSize+entry > maxFieldBytes-len("Amqp-Encoded: \r\n") ||
		c.bytes+entry > maxMappedBytes-reservedBytes {
		c.omitted++
		return
	}
	c.bytes += entry
	if !c.add(name, percentEncode(value)) {
		c.bytes -= entry
		return
	}
	c.encSize += entry
	c.encoded = append(c.encoded, name)
}

// property appends a field where the message has the property.
func (c *collector) property(name, value string) {
	if value != "" {
		c.text(name, value)
	}
}

func (c *collector) properties(m *inbox.Message) {
	p := &m.Properties
	c.property("Amqp-Exchange", m.Exchange)
	c.property("Amqp-Routing-Key", m.RoutingKey)
	c.property("Amqp-Message-Id", p.MessageID)
	c.property("Amqp-Correlation-Id", p.CorrelationID)
	c.property("Amqp-Reply-To", p.ReplyTo)
	c.property("Amqp-Type", p.Type)
	c.property("Amqp-App-Id", p.AppID)
	c.property("Amqp-User-Id", p.UserID)
	if !p.Timestamp.IsZero() {
		c.text("Amqp-Timestamp", timeText(p.Timestamp))
	}
	if p.Priority != 0 {
		c.text("Amqp-Priority", strconv.Itoa(int(p.Priority)))
	}
	c.property("Amqp-Expiration", p.Expiration)
}

// table appends what comes from the header table, the dearest first: trace and
// CloudEvents headers, the whole table as JSON, then the scalar headers by name.
func (c *collector) table(t inbox.Table, ce cloudEvent, n *names) {
	c.trace(t)
	c.cloudEvent(t, ce)

	unnamed := c.nameHeaders(t, n)
	json, err := inbox.MarshalTable(t)
	if err != nil || !isPlainValue(string(json)) {
		c.omitted += 1 + unnamed
	} else if !c.add("Amqp-Headers", string(json)) {
		c.omitted += unnamed
	}
	for i := range c.entries {
		if e := &c.entries[i]; e.named {
			c.text(e.field, e.text)
		}
	}
}

// finish appends the fields about the fields.
func (c *collector) finish() {
	if len(c.encoded) > 0 {
		c.plain("Amqp-Encoded", strings.Join(c.encoded, ", "))
	}
	if c.omitted > 0 {
		c.plain("Amqp-Headers-Omitted", strconv.Itoa(c.omitted))
	}
}

// entry is an entry of the header table that HTTP could carry.
type entry struct {
	field, text string
	scalar      bool
	named       bool // it has a field of its own
}

// nameHeaders fills c.entries with the entries of t, sorted by the name of their
// field, marks those that can have one, and returns the number of those that only
// JSON can carry: they are no scalars, HTTP cannot carry their names, or two names
// would become one.
func (c *collector) nameHeaders(t inbox.Table, n *names) (unnamed int) {
	for name, v := range t {
		f, ok := n.field(name)
		if !ok {
			unnamed++
			continue
		}
		text, scalar := scalarText(v)
		c.entries = append(c.entries, entry{field: f, text: text, scalar: scalar})
	}
	all := c.entries
	slices.SortFunc(all, func(a, b entry) int { return strings.Compare(a.field, b.field) })
	for i, e := range all {
		twin := i > 0 && all[i-1].field == e.field || i+1 < len(all) && all[i+1].field == e.field
		if all[i].named = e.scalar && !twin; !all[i].named {
			unnamed++
		}
	}
	return unnamed
}

// names remembers the fields of the names that messages use: they are few, and the
// same in every message. The zero value is ready.
type names struct {
	known atomic.Pointer[map[string]string] // "": HTTP cannot carry it
	mu    sync.Mutex
}

// maxNames are remembered, of maxNameLength at most: a producer that makes names up
// must not fill the memory.
const (
	maxNames      = 256
	maxNameLength = 128
)

func (n *names) field(name string) (string, bool) {
	if known := n.known.Load(); known != nil {
		if f, ok := (*known)[name]; ok {
			return f, f != ""
		}
	}
	f, ok := headerField(name)
	n.add(name, f)
	return f, ok
}

func (n *names) add(name, field string) {
	if len(name) > maxNameLength {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	known := map[string]string{}
	if old := n.known.Load(); old != nil {
		if len(*old) >= maxNames {
			return
		}
		known = maps.Clone(*old)
	}
	known[strings.Clone(name)] = field
	n.known.Store(&known)
}

const headerPrefix = "Amqp-Header-"

// headerField returns the field for a name of the header table, in canonical
// form, as HTTP field names know no case.
func headerField(name string) (string, bool) {
	if name == "" {
		return "", false
	}
	b := make([]byte, 0, len(headerPrefix)+len(name))
	b = append(b, headerPrefix...)
	for i := range len(name) {
		switch c := name[i]; {
		case c == '_' || c == '.' || c == ' ' || c == ':':
			b = append(b, '-') // proxies drop or merge such names
		case isTokenByte(c):
			b = append(b, c)
		default:
			return "", false
		}
	}
	f := textproto.CanonicalMIMEHeaderKey(string(b))
	if isHopByHop(f[len(headerPrefix):]) {
		return "", false
	}
	return f, true
}

func isTokenByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
		strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
}

func isHopByHop(canonical string) bool {
	switch canonical {
	case "Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection",
		"Te", "Trailer", "Trailers", "Transfer-Encoding", "Upgrade":
		return true
	}
	return false
}
