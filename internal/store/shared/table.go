package shared

import (
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// DefaultTable is the table's name where the configuration has none.
const DefaultTable = "inbox"

// parseTable reads NAME or SCHEMA.NAME as SQL does: what stands in double
// quotes is taken as it is, the rest is folded to lower case. The result is
// quoted wherever it becomes SQL.
func parseTable(s string) (pgx.Identifier, error) {
	var parts pgx.Identifier
	for rest := s; ; {
		part, after, err := nextName(rest)
		if err != nil {
			return nil, fmt.Errorf("table %q: %w", s, err)
		}
		parts = append(parts, part)
		if after == "" {
			break
		}
		rest = after[1:]
	}
	if len(parts) > 2 {
		return nil, fmt.Errorf("table %q: want NAME or SCHEMA.NAME", s)
	}
	return parts, nil
}

// nextName cuts the first name off s; after is empty or starts with a dot.
func nextName(s string) (name, after string, err error) {
	if !strings.HasPrefix(s, `"`) {
		name, _, _ = strings.Cut(s, ".")
		after = s[len(name):]
		for i, c := range name {
			letter := c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
			if !letter && (i == 0 || c != '$' && (c < '0' || c > '9')) {
				return "", "", fmt.Errorf("%q must be put in double quotes", name)
			}
		}
		return strings.ToLower(name), after, checkName(name)
	}
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch {
		case s[i] != '"':
			b.WriteByte(s[i])
		case strings.HasPrefix(s[i+1:], `"`):
			b.WriteByte('"')
			i++
		case i+1 < len(s) && s[i+1] != '.':
			return "", "", fmt.Errorf("a dot must follow the closing quote")
		default:
			return b.String(), s[i+1:], checkName(b.String())
		}
	}
	return "", "", fmt.Errorf("a closing quote is missing")
}

func checkName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("a name is empty")
	case strings.ContainsRune(name, 0):
		return fmt.Errorf("a name has a NUL byte")
	case len(name) > 63:
		return fmt.Errorf("a name is longer than the 63 bytes that PostgreSQL keeps")
	}
	return nil
}
