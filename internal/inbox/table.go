package inbox

import (
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"
)

// The limits of MarshalTable and UnmarshalTable. They lie above everything that
// the AMQP client lets through (tables nested 32 deep, one frame of headers), so
// that they never keep a message from being parked.
const (
	MaxTableDepth = 64
	MaxTableBytes = 16 << 20
)

// ErrTableLimit is returned for a table nested deeper than MaxTableDepth or
// longer than MaxTableBytes as JSON.
var ErrTableLimit = errors.New("header table is too deep or too large")

// The tags: an object with exactly one member of such a name stands for a value
// that JSON has no type for.
const (
	tagBytes     = "bytes"     // base64
	tagTimestamp = "timestamp" // RFC 3339, or seconds where the year has more than four digits
	tagDecimal   = "decimal"   // decimal digits, as many behind the point as the scale
	tagFloat     = "float"     // "NaN", "+Inf", "-Inf"
	tagTable     = "table"     // an object to be taken literally, or a list of [name, value]
)

func isTag(name string) bool {
	switch name {
	case tagBytes, tagTimestamp, tagDecimal, tagFloat, tagTable:
		return true
	}
	return false
}

// MarshalTable returns t as JSON of visible ASCII and spaces only, with its
// names in order, so that it can be stored, compared, and sent in an HTTP header.
//
// What JSON has no type for is tagged: {"bytes": "<base64>"} for byte strings
// and for strings that are not UTF-8, {"timestamp": "<RFC 3339>"} or the number
// of seconds where the year is not one of four digits, {"decimal": "12.34"},
// {"float": "NaN"}. A float always has a point or an exponent, an integer never
// has. A nested table that looks like a tag is wrapped, {"table": {…}}; a table
// with a name that is not UTF-8 becomes {"table": [[name, value], …]}.
//
// A nil and an empty table are both {}. A value of a type that Table does not
// name, and a table above the limits (ErrTableLimit), is an error.
func MarshalTable(t Table) ([]byte, error) {
	e := tableEncoder{buf: make([]byte, 0, 64+32*len(t))}
	if err := e.table(t, 0, true); err != nil {
		return nil, fmt.Errorf("encoding header table: %w", err)
	}
	return e.buf, nil
}

type tableEncoder struct{ buf []byte }

// table appends t. The outermost table is a table whatever it looks like; there
// only the tag "table" needs telling apart.
func (e *tableEncoder) table(t Table, depth int, outermost bool) error {
	if depth > MaxTableDepth {
		return ErrTableLimit
	}
	names := slices.Sorted(maps.Keys(t))
	if slices.ContainsFunc(names, func(n string) bool { return !utf8.ValidString(n) }) {
		return e.pairs(t, names, depth)
	}
	wrap := len(names) == 1 && isTag(names[0])
	if wrap && outermost {
		wrap = names[0] == tagTable && !isJSONScalar(t[tagTable])
	}
	if wrap {
		e.open(tagTable)
	}
	e.buf = append(e.buf, '{')
	for i, n := range names {
		if i > 0 {
			e.buf = append(e.buf, ',')
		}
		e.string(n)
		e.buf = append(e.buf, ':')
		if err := e.value(t[n], depth+1); err != nil {
			return err
		}
	}
	e.buf = append(e.buf, '}')
	if wrap {
		e.buf = append(e.buf, '}')
	}
	return nil
}

func (e *tableEncoder) pairs(t Table, names []string, depth int) error {
	e.open(tagTable)
	e.buf = append(e.buf, '[')
	for i, n := range names {
		if i > 0 {
			e.buf = append(e.buf, ',')
		}
		e.buf = append(e.buf, '[')
		if err := e.value(n, depth+1); err != nil {
			return err
		}
		e.buf = append(e.buf, ',')
		if err := e.value(t[n], depth+1); err != nil {
			return err
		}
		e.buf = append(e.buf, ']')
	}
	e.buf = append(e.buf, ']', '}')
	return nil
}

// isJSONScalar reports whether v is encoded as neither an object nor an array.
func isJSONScalar(v any) bool {
	switch v := v.(type) {
	case string:
		return utf8.ValidString(v)
	case float32:
		return isFinite(float64(v))
	case float64:
		return isFinite(v)
	case Table, []any, []byte, time.Time, Decimal:
		return false
	}
	return true
}

func isFinite(f float64) bool { return !math.IsNaN(f) && !math.IsInf(f, 0) }

func (e *tableEncoder) value(v any, depth int) error {
	if len(e.buf) > MaxTableBytes {
		return ErrTableLimit
	}
	switch v := v.(type) {
	case nil:
		e.buf = append(e.buf, "null"...)
	case bool:
		e.buf = strconv.AppendBool(e.buf, v)
	case string:
		return e.text(v)
	case []byte:
		return e.bytes(v)
	case float32:
		e.float(float64(v))
	case float64:
		e.float(v)
	case time.Time:
		e.timestamp(v)
	case Decimal:
		e.open(tagDecimal)
		e.string(v.String())
		e.buf = append(e.buf, '}')
	case Table:
		return e.table(v, depth, false)
	case []any:
		return e.array(v, depth)
	default:
		digits, ok := appendInteger(e.buf, v)
		if !ok {
			return fmt.Errorf("value of type %T", v)
		}
		e.buf = digits
	}
	return nil
}

// appendInteger appends the decimal digits of v; ok is false where v is not one
// of Go's integer types.
func appendInteger(dst []byte, v any) (b []byte, ok bool) {
	switch v := v.(type) {
	case int:
		return strconv.AppendInt(dst, int64(v), 10), true
	case int8:
		return strconv.AppendInt(dst, int64(v), 10), true
	case int16:
		return strconv.AppendInt(dst, int64(v), 10), true
	case int32:
		return strconv.AppendInt(dst, int64(v), 10), true
	case int64:
		return strconv.AppendInt(dst, v, 10), true
	case uint:
		return strconv.AppendUint(dst, uint64(v), 10), true
	case uint8:
		return strconv.AppendUint(dst, uint64(v), 10), true
	case uint16:
		return strconv.AppendUint(dst, uint64(v), 10), true
	case uint32:
		return strconv.AppendUint(dst, uint64(v), 10), true
	case uint64:
		return strconv.AppendUint(dst, v, 10), true
	}
	return dst, false
}

func (e *tableEncoder) array(a []any, depth int) error {
	if depth > MaxTableDepth {
		return ErrTableLimit
	}
	e.buf = append(e.buf, '[')
	for i, v := range a {
		if i > 0 {
			e.buf = append(e.buf, ',')
		}
		if err := e.value(v, depth+1); err != nil {
			return err
		}
	}
	e.buf = append(e.buf, ']')
	return nil
}

func (e *tableEncoder) open(tag string) {
	e.buf = append(e.buf, '{', '"')
	e.buf = append(e.buf, tag...)
	e.buf = append(e.buf, '"', ':')
}

func (e *tableEncoder) text(s string) error {
	if !utf8.ValidString(s) {
		return e.bytes([]byte(s))
	}
	if len(s) > MaxTableBytes {
		return ErrTableLimit
	}
	e.string(s)
	return nil
}

func (e *tableEncoder) bytes(b []byte) error {
	if len(b) > MaxTableBytes {
		return ErrTableLimit
	}
	e.open(tagBytes)
	e.buf = append(e.buf, '"')
	e.buf = base64.StdEncoding.AppendEncode(e.buf, b)
	e.buf = append(e.buf, '"', '}')
	return nil
}

func (e *tableEncoder) float(f float64) {
	if !isFinite(f) {
		e.open(tagFloat)
		e.string(strconv.FormatFloat(f, 'g', -1, 64))
		e.buf = append(e.buf, '}')
		return
	}
	start := len(e.buf)
	e.buf = strconv.AppendFloat(e.buf, f, 'g', -1, 64)
	if !slices.ContainsFunc(e.buf[start:], func(c byte) bool { return c == '.' || c == 'e' }) {
		e.buf = append(e.buf, ".0"...)
	}
}

// The seconds of the years 0000 to 9999, all that RFC 3339 can write.
const (
	minRFC3339 = -62167219200
	maxRFC3339 = 253402300799
)

func (e *tableEncoder) timestamp(t time.Time) {
	e.open(tagTimestamp)
	if s := t.Unix(); s < minRFC3339 || s > maxRFC3339 {
		e.buf = strconv.AppendInt(e.buf, s, 10)
	} else {
		e.buf = append(e.buf, '"')
		e.buf = t.UTC().AppendFormat(e.buf, time.RFC3339Nano)
		e.buf = append(e.buf, '"')
	}
	e.buf = append(e.buf, '}')
}

const lowerHex = "0123456789abcdef"

// string appends s, which is UTF-8, as a JSON string in which everything but
// visible ASCII and spaces is escaped.
func (e *tableEncoder) string(s string) {
	e.buf = append(e.buf, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			e.buf = append(e.buf, '\\', byte(r))
		case r >= ' ' && r < 0x7f:
			e.buf = append(e.buf, byte(r))
		case r > 0xffff:
			r -= 0x10000
			e.unicode(0xd800 + r>>10)
			e.unicode(0xdc00 + r&0x3ff)
		default:
			e.unicode(r)
		}
	}
	e.buf = append(e.buf, '"')
}

func (e *tableEncoder) unicode(r rune) {
	e.buf = append(e.buf, '\\', 'u',
		lowerHex[r>>12&0xf], lowerHex[r>>8&0xf], lowerHex[r>>4&0xf], lowerHex[r&0xf])
}

// String returns d with all its digits: 1200 with scale 2 is 12.00.
func (d Decimal) String() string {
	digits := strconv.FormatInt(int64(d.Value), 10)
	sign := ""
	if digits[0] == '-' {
		sign, digits = "-", digits[1:]
	}
	scale := int(d.Scale)
	if scale == 0 {
		return sign + digits
	}
	for len(digits) <= scale {
		digits = "0" + digits
	}
	point := len(digits) - scale
	return sign + digits[:point] + "." + digits[point:]
}
