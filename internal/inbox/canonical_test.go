package inbox

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"
)

func TestCanonicalForms(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 256)
	sum := sha256.Sum256([]byte(long))
	controls := strings.Repeat("\n", 86) // 258 bytes when encoded
	controlSum := sha256.Sum256([]byte(controls))
	hashed := "sha256:" + strings.Repeat("0a", 32)
	for raw, want := range map[string]MessageID{
		"":                       "",
		"order-42":               "order-42",
		"a":                      "a",
		" a":                     "%20a",
		"a ":                     "a%20",
		"a\x00b":                 "a%00b",
		"a\r\nb":                 "a%0D%0Ab",
		"100%":                   "100%25",
		"%20a":                   "%2520a",
		"\xff":                   "%FF",
		"\x7f":                   "%7F",
		"é":                      "%C3%A9",
		"😀":                      "%F0%9F%98%80",
		`<a href="x">`:           `<a%20href="x">`,
		strings.Repeat("x", 255): MessageID(strings.Repeat("x", 255)),
		strings.Repeat("\n", 85): MessageID(strings.Repeat("%0A", 85)),
		long:                     MessageID("sha256:" + hex.EncodeToString(sum[:])),
		controls:                 MessageID("sha256:" + hex.EncodeToString(controlSum[:])),
		hashed:                   MessageID("%73" + hashed[1:]),
		"%73" + hashed[1:]:       MessageID("%2573" + hashed[1:]),
		strings.ToUpper(hashed):  MessageID(strings.ToUpper(hashed)),
		hashed + "0":             MessageID(hashed + "0"),
		"sha256:short":           "sha256:short",
	} {
		if got := Canonical([]byte(raw)); got != want {
			t.Errorf("Canonical(%.80q): got %q, want %q", raw, got, want)
		}
		if got := CanonicalString(raw); got != want {
			t.Errorf("CanonicalString(%.80q): got %q, want %q", raw, got, want)
		}
		if len(want) > MaxMessageID {
			t.Errorf("%q has %d bytes, want at most %d", want, len(want), MaxMessageID)
		}
		back, ok := want.Raw()
		if want.Hashed() == ok || ok && string(back) != raw {
			t.Errorf("Raw(%q): got %q, %v, want %q", want, back, ok, raw)
		}
	}
}

func TestRawIDSpelledLikeAHashDoesNotCollide(t *testing.T) {
	t.Parallel()
	long := bytes.Repeat([]byte("x"), 4000)
	impostor := string(Canonical(long))
	if got := CanonicalString(impostor); got == Canonical(long) {
		t.Errorf("Canonical(%q) is that of another ID too", got)
	}
}

func TestParseMessageID(t *testing.T) {
	t.Parallel()
	for s, ok := range map[string]bool{
		"a": true, "a%20b": true, "%25": true, "sha256:" + strings.Repeat("0", 64): true,
		"": false, "a b": false, "%": false, "%2": false, "%0d": false, "%41": false, "é": false,
		strings.Repeat("x", 256): false, "%73ha256:" + strings.Repeat("0", 64): true, "%73": false,
	} {
		id, err := ParseMessageID(s)
		if ok != (err == nil) || ok && string(id) != s {
			t.Errorf("ParseMessageID(%q): got %q, %v, want ok %v", s, id, err, ok)
		}
	}
}

// FuzzCanonicalIsInjective checks that two IDs share a canonical form only where
// they are equal, that the form is what the contract says, and that it can be
// read back.
func FuzzCanonicalIsInjective(f *testing.F) {
	hashed := "sha256:" + strings.Repeat("0a", 32)
	for _, pair := range [][2]string{
		{"a", " a"},
		{"a", "a "},
		{"%20", " "},
		{"a\x00", "a"},
		{"\xff", "%FF"},
		{"😀", "\xf0\x9f\x98\x80"},
		{strings.Repeat("x", 256), strings.Repeat("x", 257)},
		{strings.Repeat("x", 255), strings.Repeat("x", 256)},
		{strings.Repeat("\n", 85), strings.Repeat("\n", 86)},
		{hashed, "%73" + hashed[1:]},
		{hashed, string(CanonicalString(strings.Repeat("y", 300)))},
		{"", " "},
	} {
		f.Add([]byte(pair[0]), []byte(pair[1]))
	}
	f.Fuzz(func(t *testing.T, a, b []byte) {
		ca, cb := Canonical(a), Canonical(b)
		if (ca == cb) != bytes.Equal(a, b) {
			t.Errorf("Canonical(%q) = %q and Canonical(%q) = %q", a, ca, b, cb)
		}
		// Whatever its form is, spelling that form out is another ID.
		if again := CanonicalString(string(ca)); again == ca && !bytes.Equal(a, []byte(ca)) {
			t.Errorf("%q is the canonical form of itself and of %q", ca, a)
		}
		checkCanonical(t, a, ca)
	})
}

func checkCanonical(t *testing.T, raw []byte, id MessageID) {
	t.Helper()
	if len(id) > MaxMessageID || (id == "") != (len(raw) == 0) {
		t.Errorf("Canonical(%q) has %d bytes", raw, len(id))
	}
	for _, c := range []byte(id) {
		if c <= ' ' || c >= 0x7f {
			t.Errorf("Canonical(%q) = %q holds %q", raw, id, c)
		}
	}
	if got := CanonicalString(string(raw)); got != id {
		t.Errorf("CanonicalString(%q): got %q, want %q", raw, got, id)
	}
	if back, ok := id.Raw(); ok && !bytes.Equal(back, raw) {
		t.Errorf("Raw(%q): got %q, want %q", id, back, raw)
	}
	if id == "" {
		return
	}
	if _, err := ParseMessageID(string(id)); err != nil {
		t.Errorf("ParseMessageID(%q): %v", id, err)
	}
}

func TestCleanIDCostsNoAllocation(t *testing.T) {
	id := "0b2d0f66-52f4-4f5c-8f0e-3a1c0a6a2d55"
	if n := testing.AllocsPerRun(100, func() { sink = CanonicalString(id) }); n != 0 {
		t.Errorf("CanonicalString of a clean ID: got %v allocations, want 0", n)
	}
	i := Identity{Sources: [][]Source{{{Kind: SourceProperty}}}}
	m := &Message{Properties: Properties{MessageID: id}}
	if n := testing.AllocsPerRun(100, func() { sink, _ = i.MessageID(m) }); n != 0 {
		t.Errorf("MessageID from the property: got %v allocations, want 0", n)
	}
}

var sink MessageID

func BenchmarkCanonical(b *testing.B) {
	for name, raw := range map[string]string{
		"uuid":    "0b2d0f66-52f4-4f5c-8f0e-3a1c0a6a2d55",
		"encoded": "orders / 42 é",
		"hashed":  strings.Repeat("x", 1000),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				sink = CanonicalString(raw)
			}
		})
	}
}
