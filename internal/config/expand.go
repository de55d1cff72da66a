package config

import (
	"errors"
	"fmt"
	"strings"
)

// Getenv looks up an environment variable, as os.LookupEnv does.
type Getenv func(name string) (value string, ok bool)

// expand replaces ${NAME} and ${NAME:-default}; $${ stands for ${. Nothing else
// with a dollar is special, for passwords have them. from reports whether
// anything came from the environment: such a text may be a secret, wherever it
// stands, and is not to be shown.
func expand(s string, getenv Getenv) (text string, from bool, err error) {
	if !strings.Contains(s, "${") {
		return s, false, nil
	}
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(s, "${")
		if !found {
			b.WriteString(s)
			return b.String(), from, nil
		}
		if strings.HasSuffix(before, "$") {
			b.WriteString(before[:len(before)-1] + "${")
			s = rest
			continue
		}
		b.WriteString(before)
		expression, after, closed := strings.Cut(rest, "}")
		if !closed {
			return "", from, errors.New("has a ${ without }; write $${ for a literal ${")
		}
		value, err := lookup(expression, getenv)
		if err != nil {
			return "", from, err
		}
		b.WriteString(value)
		s, from = after, true
	}
}

func lookup(expression string, getenv Getenv) (string, error) {
	name, fallback, hasFallback := strings.Cut(expression, ":-")
	if !isVariable(name) {
		return "", errors.New("has a ${…} that is no name of a variable; write $${ for a literal ${")
	}
	value, ok := getenv(name)
	switch {
	case hasFallback && value == "":
		return fallback, nil
	case !ok:
		return "", fmt.Errorf("environment variable %s is not set", name)
	}
	return value, nil
}

func isVariable(name string) bool {
	for i := range len(name) {
		c := name[i]
		if c != '_' && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && (i == 0 || !isDigit(c)) {
			return false
		}
	}
	return name != ""
}
