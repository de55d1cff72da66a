package config

import (
	"errors"
	"fmt"
	"strings"
)

// MessageID is a list of places to look for an ID, tried in order. Each is one
// Source, or the parts of a composite.
type MessageID [][]Source

// Source is one place to look for an ID. Kind is property, header, json,
// cloudevents or sha256; Arg is the property's or header's name or the pointer.
type Source struct{ Kind, Arg string }

// String returns s as it is written in the file.
func (s Source) String() string {
	if s.Arg == "" {
		return s.Kind
	}
	return s.Kind + ":" + s.Arg
}

// String returns m as it is written in the file.
func (m MessageID) String() string {
	entries := make([]string, len(m))
	for i, parts := range m {
		words := make([]string, len(parts))
		for j, s := range parts {
			words[j] = s.String()
		}
		entries[i] = strings.Join(words, ", ")
		if len(parts) > 1 {
			entries[i] = "[" + entries[i] + "]"
		}
	}
	return "[" + strings.Join(entries, ", ") + "]"
}

var sourceWords = []string{"property", "property:correlation_id", "header:NAME", "json:/POINTER", "cloudevents", "sha256"}

func parseSource(text string) (Source, error) {
	kind, arg, hasArg := strings.Cut(text, ":")
	s := Source{Kind: kind, Arg: arg}
	switch kind {
	case "property":
		if hasArg && arg != "message_id" && arg != "correlation_id" {
			return s, errors.New("names a property that is no source; must be property, property:message_id or property:correlation_id" + suggestion(arg, "message_id", "correlation_id"))
		}
		if arg == "message_id" {
			s.Arg = "" // what property means anyway
		}
	case "header":
		if arg == "" || len(arg) > 255 {
			return s, errors.New("needs a header's name of 1 to 255 bytes: header:NAME")
		}
	case "json":
		if err := checkPointer(arg); err != nil {
			return s, err
		}
	case "cloudevents", "sha256":
		if hasArg {
			return s, fmt.Errorf("%s takes nothing behind it", kind)
		}
	default:
		return s, errors.New("must be one of " + strings.Join(sourceWords, ", ") + suggestion(kind, "property", "header", "json", "cloudevents", "sha256"))
	}
	return s, nil
}

// checkPointer checks the grammar of RFC 6901.
func checkPointer(p string) error {
	if !strings.HasPrefix(p, "/") {
		return errors.New("needs a JSON pointer that begins with a slash: json:/order/id")
	}
	for i := range len(p) {
		if p[i] == '~' && (i+1 == len(p) || p[i+1] != '0' && p[i+1] != '1') {
			return errors.New("has a ~ in its JSON pointer that is neither ~0 (for ~) nor ~1 (for /)")
		}
	}
	return nil
}

// Fingerprint says what tells two messages with one ID apart: Mode is body, json
// (the value that Pointer leads to) or none.
type Fingerprint struct{ Mode, Pointer string }

// String returns f as it is written in the file.
func (f Fingerprint) String() string {
	if f.Mode == "json" {
		return "json:" + f.Pointer
	}
	return f.Mode
}

// MarshalText makes encoders print what String returns.
func (f Fingerprint) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

func (f *Fingerprint) parse(text string) error {
	mode, pointer, hasPointer := strings.Cut(text, ":")
	switch {
	case mode == "json":
		if err := checkPointer(pointer); err != nil {
			return err
		}
	case hasPointer, mode != "body" && mode != "none":
		return errors.New("must be body, json:/POINTER or none" + suggestion(mode, "body", "json", "none"))
	}
	*f = Fingerprint{mode, pointer}
	return nil
}

// Status replaces rows of the answer table: a status such as 404, or a class
// such as 5xx, to one of statusWords.
type Status map[string]string

var statusWords = []string{"ack", "retry", "later", "park", "slow", "pause"}

func isStatusKey(key string) bool {
	if len(key) != 3 || key[0] < '2' || key[0] > '5' {
		return false
	}
	return key[1:] == "xx" || isDigit(key[1]) && isDigit(key[2])
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// Park says where parked messages go: to the store, or, where ToBroker is set,
// to an exchange.
type Park struct {
	ToBroker   bool   `yaml:"-"`
	Exchange   string `yaml:"exchange"`
	RoutingKey string `yaml:"routing_key"`
}
