package inbox

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
)

// UnmarshalTable is the inverse of MarshalTable. Integers come back as int64, or
// as uint64 where int64 is too small; floats as float64, byte strings and
// strings that are not UTF-8 as []byte, timestamps in UTC: the values are the
// same, the widths of numbers are not kept. No input at all is the nil Table.
func UnmarshalTable(b []byte) (Table, error) {
	if len(b) == 0 {
		return nil, nil
	}
	t, err := decodeTable(b)
	if err != nil {
		return nil, fmt.Errorf("decoding header table: %w", err)
	}
	return t, nil
}

func decodeTable(b []byte) (Table, error) {
	// The encoder stops at the value that crosses MaxTableBytes, and each byte
	// of that value may take six as JSON.
	if len(b) > 8*MaxTableBytes {
		return nil, ErrTableLimit
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	var members map[string]any
	if err := dec.Decode(&members); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the object")
	}
	if inner, ok := members[tagTable]; ok && len(members) == 1 {
		switch inner.(type) {
		case map[string]any, []any:
			return untagTable(inner, 0)
		}
	}
	return untagMembers(members, 0)
}

func untagMembers(members map[string]any, depth int) (Table, error) {
	if depth > MaxTableDepth {
		return nil, ErrTableLimit
	}
	t := make(Table, len(members))
	for name, raw := range members {
		v, err := untag(raw, depth+1)
		if err != nil {
			return nil, err
		}
		t[name] = v
	}
	return t, nil
}

// untag turns a JSON value into what it stands for.
func untag(raw any, depth int) (any, error) {
	switch raw := raw.(type) {
	case json.Number:
		return parseNumber(raw.String())
	case []any:
		return untagArray(raw, depth)
	case map[string]any:
		if len(raw) == 1 {
			for name, v := range raw {
				if isTag(name) {
					return resolveTag(name, v, depth)
				}
			}
		}
		return untagMembers(raw, depth)
	default: // nil, bool, string
		return raw, nil
	}
}

func untagArray(raw []any, depth int) ([]any, error) {
	if depth > MaxTableDepth {
		return nil, ErrTableLimit
	}
	a := make([]any, len(raw))
	for i := range raw {
		v, err := untag(raw[i], depth+1)
		if err != nil {
			return nil, err
		}
		a[i] = v
	}
	return a, nil
}

func parseNumber(s string) (any, error) {
	if strings.ContainsAny(s, ".eE") {
		return strconv.ParseFloat(s, 64)
	}
	if i, err := strconv.ParseInt(s, 10, 64); err == nil {
		return i, nil
	}
	return strconv.ParseUint(s, 10, 64)
}

func resolveTag(name string, raw any, depth int) (any, error) {
	if name == tagTable {
		return untagTable(raw, depth)
	}
	if n, ok := raw.(json.Number); ok && name == tagTimestamp {
		s, err := strconv.ParseInt(n.String(), 10, 64)
		return time.Unix(s, 0).UTC(), err
	}
	s, ok := raw.(string)
	if !ok {
		return nil, fmt.Errorf("tag %q on a value of type %T", name, raw)
	}
	switch name {
	case tagBytes:
		return base64.StdEncoding.DecodeString(s)
	case tagTimestamp:
		t, err := time.Parse(time.RFC3339Nano, s)
		return t.UTC(), err
	case tagDecimal:
		return parseDecimal(s)
	default:
		return parseNonFinite(s)
	}
}

// untagTable resolves the tag "table": an object whose look is not to be
// minded, or pairs of names and values.
func untagTable(raw any, depth int) (Table, error) {
	switch raw := raw.(type) {
	case map[string]any:
		return untagMembers(raw, depth)
	case []any:
		return untagPairs(raw, depth)
	}
	return nil, fmt.Errorf("tag %q on a value of type %T", tagTable, raw)
}

func untagPairs(pairs []any, depth int) (Table, error) {
	if depth > MaxTableDepth {
		return nil, ErrTableLimit
	}
	t := make(Table, len(pairs))
	for _, raw := range pairs {
		pair, ok := raw.([]any)
		if !ok || len(pair) != 2 {
			return nil, fmt.Errorf("tag %q wants pairs of a name and a value", tagTable)
		}
		name, err := untag(pair[0], depth+1)
		if err != nil {
			return nil, err
		}
		v, err := untag(pair[1], depth+1)
		if err != nil {
			return nil, err
		}
		switch name := name.(type) {
		case string:
			t[name] = v
		case []byte:
			t[string(name)] = v
		default:
			return nil, fmt.Errorf("a name of type %T", name)
		}
	}
	return t, nil
}

func parseDecimal(s string) (Decimal, error) {
	whole, fraction, point := strings.Cut(s, ".")
	v, err := strconv.ParseInt(whole+fraction, 10, 32)
	if err != nil || point && fraction == "" || len(fraction) > math.MaxUint8 {
		return Decimal{}, fmt.Errorf("decimal %q", s)
	}
	return Decimal{Scale: uint8(len(fraction)), Value: int32(v)}, nil
}

func parseNonFinite(s string) (float64, error) {
	switch s {
	case "NaN":
		return math.NaN(), nil
	case "+Inf":
		return math.Inf(1), nil
	case "-Inf":
		return math.Inf(-1), nil
	}
	return 0, fmt.Errorf("float %q", s)
}
