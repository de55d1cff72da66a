package inbox

import "crypto/sha256"

// FingerprintOf returns the fingerprint of m. Where the pointer of
// FingerprintJSON leads nowhere the whole body counts: a difference that is
// parked can be looked at, one that nobody checks is a lost message.
func (i Identity) FingerprintOf(m *Message) Fingerprint {
	switch i.Fingerprint {
	case FingerprintNone:
		return Fingerprint{}
	case FingerprintJSON:
		doc := document{body: m.Body}
		if value, ok := doc.value(i.FingerprintPointer); ok {
			return fingerprint(value)
		}
	}
	return fingerprint(m.Body)
}

func fingerprint(b []byte) Fingerprint {
	sum := sha256.Sum256(b)
	f := Fingerprint(sum[:8])
	if f.IsZero() {
		f[7] = 1 // zero means none, and would match everything
	}
	return f
}
