package inbox

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

// MaxMessageID is the most bytes that a canonical message ID has.
const MaxMessageID = 255

// hashPrefix begins the canonical form of an ID that is too long to be spelled
// out.
const hashPrefix = "sha256:"

// Canonical returns the one form in which an ID appears everywhere: in the
// header, in the table, in logs and in URLs. It is the ID's bytes with
// everything outside visible ASCII, and '%' itself, percent-encoded (upper-case
// hexadecimal); where that is longer than MaxMessageID bytes, "sha256:" and the
// hexadecimal SHA-256 of raw.
//
// Distinct raw IDs have distinct canonical forms. To that end an ID that is
// itself spelled like a hashed one, "sha256:" and 64 lower-case hexadecimal
// digits, has its first byte encoded: "%73ha256:…". An empty raw ID gives the
// empty MessageID, which means none.
func Canonical(raw []byte) MessageID {
	if isClean(raw) {
		return MessageID(raw)
	}
	return encodeID(raw)
}

// CanonicalString is Canonical for a string; it does not allocate where the ID
// is its own canonical form.
func CanonicalString(raw string) MessageID {
	if isClean(raw) {
		return MessageID(raw)
	}
	return encodeID(raw)
}

// isClean reports whether raw is its own canonical form.
func isClean[T string | []byte](raw T) bool {
	if len(raw) > MaxMessageID {
		return false
	}
	for i := range len(raw) {
		if !isVisible(raw[i]) {
			return false
		}
	}
	return !looksHashed(raw)
}

// isVisible reports whether c stands for itself in a canonical ID.
func isVisible(c byte) bool { return c > ' ' && c < 0x7f && c != '%' }

func looksHashed[T string | []byte](id T) bool {
	if len(id) != len(hashPrefix)+2*sha256.Size || string(id[:len(hashPrefix)]) != hashPrefix {
		return false
	}
	for i := len(hashPrefix); i < len(id); i++ {
		if c := id[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

func encodeID[T string | []byte](raw T) MessageID {
	if len(raw) > MaxMessageID {
		return hashID(raw)
	}
	first := looksHashed(raw)
	buf := make([]byte, 0, MaxMessageID)
	for i := range len(raw) {
		if c := raw[i]; isVisible(c) && !first {
			buf = append(buf, c)
		} else {
			buf = append(buf, '%', upperHex[c>>4], upperHex[c&0xf])
		}
		if first = false; len(buf) > MaxMessageID {
			return hashID(raw)
		}
	}
	return MessageID(buf)
}

const upperHex = "0123456789ABCDEF"

func hashID[T string | []byte](raw T) MessageID {
	sum := sha256.Sum256([]byte(raw))
	return MessageID(hashPrefix + hex.EncodeToString(sum[:]))
}

// Hashed reports whether id stands for an ID too long to be spelled out.
func (id MessageID) Hashed() bool { return looksHashed(string(id)) }

// Raw returns the bytes that id is the canonical form of; ok is false where they
// cannot be had, because id is hashed.
func (id MessageID) Raw() (raw []byte, ok bool) {
	if id.Hashed() {
		return nil, false
	}
	raw = make([]byte, 0, len(id))
	for i := 0; i < len(id); i++ {
		if c, ok := unhex(id[i:]); ok {
			raw = append(raw, c)
			i += 2
		} else {
			raw = append(raw, id[i])
		}
	}
	return raw, true
}

// unhex decodes the percent-encoded byte that s begins with.
func unhex(s MessageID) (byte, bool) {
	if len(s) < 3 || s[0] != '%' {
		return 0, false
	}
	hi, lo := strings.IndexByte(upperHex, s[1]), strings.IndexByte(upperHex, s[2])
	if hi < 0 || lo < 0 {
		return 0, false
	}
	return byte(hi<<4 | lo), true
}

// ParseMessageID checks that s is an ID in canonical form, as people copy it from
// a log or a page into a command.
func ParseMessageID(s string) (MessageID, error) {
	id := MessageID(s)
	switch raw, spelled := id.Raw(); {
	case s == "":
		return "", fmt.Errorf("a message ID cannot be empty")
	case spelled && Canonical(raw) != id:
		return "", fmt.Errorf("%.300q is no message ID in its canonical form; meant is perhaps %q", s, CanonicalString(s))
	}
	return id, nil
}
