package forward

import (
	"math"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/inboxd/inboxd/internal/inbox"
)

// isPlainValue reports whether s can be sent in a header as it is: visible
// ASCII and inner spaces.
func isPlainValue(s string) bool {
	for i := range len(s) {
		if c := s[i]; c > '~' || c < '!' && (c != ' ' || i == 0 || i == len(s)-1) {
			return false
		}
	}
	return true
}

// percentEncode encodes every byte of s outside visible ASCII, and %.
func percentEncode(s string) string {
	return percentEncodeIf(s, func(c byte) bool { return c < '!' || c > '~' || c == '%' })
}

func percentEncodeIf(s string, must func(byte) bool) string {
	const digits = "0123456789ABCDEF"
	n := 0
	for i := range len(s) {
		if must(s[i]) {
			n++
		}
	}
	if n == 0 {
		return s
	}
	b := make([]byte, 0, len(s)+2*n)
	for i := range len(s) {
		if c := s[i]; must(c) {
			b = append(b, '%', digits[c>>4], digits[c&15])
		} else {
			b = append(b, c)
		}
	}
	return string(b)
}

// scalarText is the text of a header table's value that is a scalar; ok is
// false for tables, lists and the void value, which only JSON can show.
func scalarText(v any) (text string, ok bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case []byte:
		return string(v), true
	case bool:
		return strconv.FormatBool(v), true
	case float32:
		return strconv.FormatFloat(float64(v), 'g', -1, 32), true
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64), true
	case time.Time:
		return timeText(v), true
	case inbox.Decimal:
		return decimalText(v), true
	}
	return integerText(v)
}

func integerText(v any) (text string, ok bool) {
	switch v := v.(type) {
	case int:
		return strconv.Itoa(v), true
	case int8:
		return strconv.Itoa(int(v)), true
	case int16:
		return strconv.Itoa(int(v)), true
	case int32:
		return strconv.Itoa(int(v)), true
	case int64:
		return strconv.FormatInt(v, 10), true
	case uint:
		return strconv.FormatUint(uint64(v), 10), true
	case uint8:
		return strconv.Itoa(int(v)), true
	case uint16:
		return strconv.Itoa(int(v)), true
	case uint32:
		return strconv.FormatUint(uint64(v), 10), true
	case uint64:
		return strconv.FormatUint(v, 10), true
	}
	return "", false
}

// timeText is RFC 3339 in UTC, or the seconds since 1970 where the year is not
// one of four digits: producers that write milliseconds.
func timeText(t time.Time) string {
	t = t.UTC()
	if y := t.Year(); y < 0 || y > 9999 {
		return strconv.FormatInt(t.Unix(), 10)
	}
	return t.Format(time.RFC3339Nano)
}

func decimalText(d inbox.Decimal) string {
	n := int64(d.Value)
	sign := ""
	if n < 0 {
		sign, n = "-", -n
	}
	s := strconv.FormatInt(n, 10)
	if d.Scale == 0 {
		return sign + s
	}
	for len(s) <= int(d.Scale) {
		s = "0" + s
	}
	return sign + s[:len(s)-int(d.Scale)] + "." + s[len(s)-int(d.Scale):]
}

// textOf is the text of a value that is a string or a byte string of UTF-8:
// clients differ in which of the two they send.
func textOf(v any) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, utf8.ValidString(v)
	case []byte:
		return string(v), utf8.Valid(v)
	}
	return "", false
}

// fieldSize is what a header field takes on the wire.
func fieldSize(name, value string) int {
	if len(value) > math.MaxInt32 { // cannot be, and must not overflow
		return math.MaxInt32
	}
	return len(name) + len(value) + len(": \r\n")
}
