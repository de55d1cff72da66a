package config

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"
)

const (
	maxFile  = 1 << 20
	maxNodes = 20_000 // with aliases resolved: a small file can stand for a huge one
	maxDepth = 32
	maxMerge = 8 // merges within merges; an anchor may stand inside itself
)

// decoder fills a Config from YAML. Unlike yaml.v3's own it goes on after an
// error, so that all problems are reported at once, each under its path.
type decoder struct {
	*report
	getenv Getenv
	nodes  int
}

// textParser is a type that is written as one word.
type textParser interface{ parse(text string) error }

// nodeDecoder is a type with a form of its own.
type nodeDecoder interface {
	decode(d *decoder, n *yaml.Node, path string)
}

// defaulted is an element of a list that begins with defaults.
type defaulted interface{ setDefaults() }

func (c *Consumer) setDefaults() { *c = DefaultConsumer() }

// value decodes n into v. A null leaves v as it is: a key without a value means
// the default.
func (d *decoder) value(n *yaml.Node, v reflect.Value, path string) {
	if n = d.resolve(n, path); n == nil {
		return
	}
	if !d.isSet(path) {
		d.lines[path] = n.Line
	}
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
		delete(d.lines, path)
		return
	}
	switch p := v.Addr().Interface().(type) {
	case nodeDecoder:
		p.decode(d, n, path)
		return
	case *URL:
		if text, _, ok := d.scalar(n, path); ok {
			*p = NewURL(strings.TrimSpace(text))
		}
		return
	case textParser:
		d.parse(n, path, p.parse)
		return
	case *time.Duration:
		d.parse(n, path, func(text string) (err error) {
			*p, err = parseDuration(text)
			return err
		})
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		d.mapping(n, path, func(key, value *yaml.Node) { d.field(key, value, v, path) })
	case reflect.Slice:
		d.list(n, v, path)
	case reflect.String:
		if text, _, ok := d.scalar(n, path); ok {
			v.SetString(text)
		}
	case reflect.Int:
		d.parse(n, path, func(text string) error {
			i, err := strconv.ParseInt(text, 10, 32)
			if err != nil {
				return errors.New("is not a whole number")
			}
			v.SetInt(i)
			return nil
		})
	case reflect.Bool:
		d.parse(n, path, func(text string) error {
			if text != "true" && text != "false" {
				return errors.New("must be true or false")
			}
			v.SetBool(text == "true")
			return nil
		})
	default:
		panic("config: no decoder for " + v.Type().String())
	}
}

// resolve follows an alias and counts the node; nil means that there are too
// many.
func (d *decoder) resolve(n *yaml.Node, path string) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if d.nodes++; d.nodes == maxNodes {
		d.addf(path, "the file stands for more than %d values; are there aliases of aliases?", maxNodes)
	}
	if d.nodes >= maxNodes || strings.Count(path, ".")+strings.Count(path, "[") > maxDepth {
		return nil
	}
	return n
}

// parse hands the text of a scalar to f and reports its error, with the text
// where that can be no secret.
func (d *decoder) parse(n *yaml.Node, path string, f func(text string) error) {
	text, from, ok := d.scalar(n, path)
	if !ok {
		return
	}
	switch err := f(text); {
	case err == nil:
	case from || len(text) > 100 || strings.Contains(text, "://"):
		d.addf(path, "%v", err)
	default:
		d.addf(path, "%q %v", text, err)
	}
}

// scalar returns the text of n with its variables filled in.
func (d *decoder) scalar(n *yaml.Node, path string) (text string, from, ok bool) {
	if n.Kind != yaml.ScalarNode {
		d.addf(path, "must be a single value, not a %s", kindOf(n))
		return "", false, false
	}
	switch n.ShortTag() {
	case "!!str", "!!int", "!!float", "!!bool", "!!timestamp":
	case "!!null":
		d.addf(path, "has no value")
		return "", false, false
	default:
		d.addf(path, "has a YAML tag that is not known here")
		return "", false, false
	}
	text, from, err := expand(n.Value, d.getenv)
	if err != nil {
		d.addf(path, "%v", err)
		return "", false, false
	}
	d.fromEnv[path] = from
	return text, from, true
}

func kindOf(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "mapping"
	case yaml.SequenceNode:
		return "list"
	}
	return "single value"
}

// field decodes the value of one key of a mapping that is the struct v.
func (d *decoder) field(key, value *yaml.Node, v reflect.Value, path string) {
	for i := range v.NumField() {
		if yamlKey(v.Type().Field(i)) == key.Value && key.Value != "" {
			at := join(path, key.Value)
			d.lines[at] = key.Line
			d.value(value, v.Field(i), at)
			return
		}
	}
	at := join(path, key.Value)
	d.lines[at] = key.Line
	d.addf(at, "%s", unknownKey(key.Value, v.Type()))
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// mapping calls f for every pair of n, with merged mappings (<<) filled in, and
// reports keys that occur twice.
func (d *decoder) mapping(n *yaml.Node, path string, f func(key, value *yaml.Node)) {
	d.pairs(n, path, map[string]int{}, 0, f)
}

// pairs is mapping for n and what is merged into it; have are the keys that need
// not be filled in any more, with their lines.
func (d *decoder) pairs(n *yaml.Node, path string, have map[string]int, merges int, f func(key, value *yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		d.addf(path, "must be a mapping, not a %s", kindOf(n))
		return
	}
	own := map[string]bool{}
	var merged []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		first, known := have[key.Value]
		switch {
		case key.Kind != yaml.ScalarNode:
			d.addf(path, "has a key that is not a word, in line %d", key.Line)
		case key.ShortTag() == "!!merge":
			merged = append(merged, value)
		case own[key.Value]:
			d.addf(join(path, key.Value), "is there twice, in lines %d and %d", first, key.Line)
		case !known:
			own[key.Value], have[key.Value] = true, key.Line
			f(key, value)
		}
	}
	for _, m := range merged {
		d.merge(m, path, have, merges+1, f)
	}
}

func (d *decoder) merge(m *yaml.Node, path string, have map[string]int, merges int, f func(key, value *yaml.Node)) {
	if merges > maxMerge {
		d.addf(path, "has merged mappings (<<) within each other deeper than %d", maxMerge)
		return
	}
	if m = d.resolve(m, path); m == nil {
		return
	}
	if m.Kind != yaml.SequenceNode {
		d.pairs(m, path, have, merges, f)
		return
	}
	for _, one := range m.Content {
		if one = d.resolve(one, path); one != nil {
			d.pairs(one, path, have, merges, f)
		}
	}
}

func (d *decoder) list(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.SequenceNode {
		d.addf(path, "must be a list, not a %s", kindOf(n))
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
	for i, element := range n.Content {
		if e, ok := v.Index(i).Addr().Interface().(defaulted); ok {
			e.setDefaults()
		}
		d.value(element, v.Index(i), fmt.Sprintf("%s[%d]", path, i))
	}
}
