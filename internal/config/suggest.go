package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// suggestion returns "; did you mean …?" with the known word that is nearest to
// word, or "" where none is near.
func suggestion(word string, known ...string) string {
	best, distance := "", 3
	for _, k := range known {
		d := editDistance(squash(word), squash(k))
		if d < distance && d < max(len(k), 2) {
			best, distance = k, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %s?", best)
}

// squash makes maxBody, max-body and max_body one word.
func squash(s string) string {
	return strings.NewReplacer("_", "", "-", "", " ", "").Replace(strings.ToLower(s))
}

// editDistance counts insertions, deletions, replacements and swaps of
// neighbours.
func editDistance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return 64
	}
	before, prev := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := range len(a) {
		row := make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			row[j+1] = min(prev[j]+cost, prev[j+1]+1, row[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, prev = prev, row
	}
	return prev[len(b)]
}

// synonyms are words of other systems.
var synonyms = map[string]string{
	"uri": "url", "address": "url", "endpoint": "url", "host": "url", "passwordfile": "password_file",
	"workers": "concurrency", "parallelism": "concurrency", "prefetchcount": "prefetch", "qos": "prefetch",
	"retries": "retry", "backoff": "retry", "maxretries": "max_attempts", "attempts": "max_attempts",
	"ttl": "retention", "loglevel": "level", "messageids": "message_id", "idempotency": "idempotency_key", "database": "store",
	"rabbitmq": "broker", "amqp": "broker", "queues": "consumers", "handler": "forward", "target": "forward", "http": "forward",
	"deadletter": "park", "dlx": "park", "dlq": "park", "cafile": "ca_file", "ca": "ca_file", "cert": "cert_file", "key": "key_file",
}

// unknownKey says what to do about a key that the mapping of type t has not.
func unknownKey(key string, t reflect.Type) string {
	known := yamlKeys(t)
	if s := suggestion(key, known...); s != "" {
		return "unknown key" + s
	}
	if s := synonyms[squash(key)]; slices.Contains(known, s) {
		return fmt.Sprintf("unknown key; did you mean %s?", s)
	}
	if at := keyBelow(key, t); at != "" {
		return fmt.Sprintf("unknown key; did you mean %s?", at)
	}
	if len(known) == 0 {
		return "unknown key"
	}
	return "unknown key; known here are " + strings.Join(known, ", ")
}

// keyBelow finds a key that stands one level too high.
func keyBelow(key string, t reflect.Type) string {
	for i := range t.NumField() {
		f := t.Field(i)
		if name := yamlKey(f); name != "" && f.Type.Kind() == reflect.Struct && slices.Contains(yamlKeys(f.Type), key) {
			return name + "." + key
		}
	}
	return ""
}

func yamlKeys(t reflect.Type) []string {
	var keys []string
	for i := range t.NumField() {
		if k := yamlKey(t.Field(i)); k != "" {
			keys = append(keys, k)
		}
	}
	return keys
}

// yamlKey returns the key of a field, "" for one that the file does not have.
func yamlKey(f reflect.StructField) string {
	if k := f.Tag.Get("yaml"); k != "-" {
		return k
	}
	return ""
}
