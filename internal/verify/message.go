package verify

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// message is one message of a case.
type message struct {
	id   string // the Idempotency-Key
	n    string // a number that no other message of this run has
	body []byte
}

// fill replaces {{id}} and {{n}}.
func (m message) fill(template string) string {
	return strings.NewReplacer("{{id}}", m.id, "{{n}}", m.n).Replace(template)
}

func (m message) fingerprint() string {
	sum := sha256.Sum256(m.body)
	return hex.EncodeToString(sum[:8])
}

// mint makes messages from a template.
type mint struct {
	template string
	idKind   string
	count    int
}

// The kinds of ID that --id knows.
const (
	idUUIDv7 = "uuidv7"
	idText   = "text"
)

func newMint(template, idKind string) *mint {
	// Numbers of runs within 11 days do not meet, and fit a 32-bit column.
	return &mint{template: template, idKind: idKind, count: int(time.Now().Unix()%1_000_000) * 1000}
}

// next makes a message of its own: new ID, new number.
func (t *mint) next() message {
	t.count++
	m := message{n: strconv.Itoa(t.count)}
	if t.idKind == idText {
		m.id = "verify-" + strings.ToLower(rand.Text()[:12]) + "-" + m.n
	} else {
		m.id = uuidV7(time.Now())
	}
	m.body = []byte(m.fill(t.template))
	return m
}

// otherBody makes a message with the ID of m and another body.
func (t *mint) otherBody(m message) message {
	t.count++
	o := message{id: m.id, n: strconv.Itoa(t.count)}
	o.body = []byte(o.fill(t.template))
	if string(o.body) == string(m.body) {
		o.body = append(o.body, '\n') // the template has no {{n}}
	}
	return o
}

// distinct reports whether two messages differ in their bodies.
func (t *mint) distinct() bool {
	return strings.Contains(t.template, "{{id}}") || strings.Contains(t.template, "{{n}}")
}

func uuidV7(now time.Time) string {
	var u [16]byte
	_, _ = rand.Read(u[6:]) // never fails
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(now.UnixMilli()))
	copy(u[:6], ms[2:])
	u[6] = u[6]&0x0f | 0x70
	u[8] = u[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:16])
}
