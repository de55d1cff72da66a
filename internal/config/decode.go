package config

import (
	"errors"
	"fmt"
	"io"
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

// readDocument returns the root of the only document in r, nil where r has none.
func readDocument(r io.Reader) (*yaml.Node, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxFile {
		return nil, Problems{{Text: fmt.Sprintf("the file is longer than %d bytes", maxFile)}}
	}
	dec := yaml.NewDecoder(strings.NewReader(string(text)))
	var doc yaml.Node
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, nil
	} else if err != nil {
		return nil, syntaxProblem(err)
	}
	var second yaml.Node
	if err := dec.Decode(&second); err == nil {
		return nil, Problems{{Line: second.Line, Text: "a second document begins here; only one is read, so remove the --- or the rest"}}
	} else if !errors.Is(err, io.EOF) {
		return nil, syntaxProblem(err)
	}
	if len(doc.Content) == 0 {
		return nil, nil
	}
	return doc.Content[0], nil
}

// syntaxProblem turns yaml.v3's message into a Problem. An anchor's name is left
// out: it may be a password that begins with a star.
func syntaxProblem(err error) Problems {
	p := Problem{Text: strings.TrimPrefix(err.Error(), "yaml: ")}
	if rest, ok := strings.CutPrefix(p.Text, "line "); ok {
		number, cause, _ := strings.Cut(rest, ": ")
		if n, err := strconv.Atoi(number); err == nil {
			p.Line, p.Text = n, cause
		}
	}
	switch {
	case strings.Contains(p.Text, "anchor '"):
		p.Text = "unknown anchor; a text that begins with * or & must be in quotes"
	case strings.Contains(p.Text, "',' or"):
		p.Text += "; inside {…} and […], ${NAME} must be in quotes"
	}
	p.Text = "not YAML: " + p.Text
	return Problems{p}
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

// decode reads a source, a list of sources, or a list with composites.
func (m *MessageID) decode(d *decoder, n *yaml.Node, path string) {
	if n.Kind == yaml.ScalarNode {
		*m = MessageID{d.sources(n, path)}
		return
	}
	if n.Kind != yaml.SequenceNode {
		d.addf(path, "must be a list of sources, not a mapping")
		return
	}
	*m = make(MessageID, len(n.Content))
	for i, element := range n.Content {
		at := fmt.Sprintf("%s[%d]", path, i)
		if element = d.resolve(element, at); element == nil {
			return
		}
		d.lines[at] = element.Line
		if element.Kind != yaml.SequenceNode {
			(*m)[i] = d.sources(element, at)
			continue
		}
		for j, part := range element.Content {
			below := fmt.Sprintf("%s[%d]", at, j)
			if part = d.resolve(part, below); part == nil {
				return
			}
			d.lines[below] = part.Line
			(*m)[i] = append((*m)[i], d.sources(part, below)...)
		}
		if len(element.Content) == 0 {
			d.addf(at, "is a composite without parts")
		}
	}
}

func (d *decoder) sources(n *yaml.Node, path string) (sources []Source) {
	d.parse(n, path, func(text string) error {
		s, err := parseSource(text)
		sources = []Source{s}
		return err
	})
	return sources
}

func (s *Status) decode(d *decoder, n *yaml.Node, path string) {
	*s = Status{}
	d.mapping(n, path, func(key, value *yaml.Node) {
		at := join(path, key.Value)
		if value = d.resolve(value, at); value == nil {
			return
		}
		d.lines[at] = key.Line
		status := strings.ToLower(key.Value)
		if !isStatusKey(status) {
			d.addf(at, "must be a status from 200 to 599, or 2xx, 3xx, 4xx or 5xx")
			return
		}
		d.parse(value, at, func(word string) error {
			if err := oneOf(word, statusWords...); err != nil {
				return err
			}
			if _, twice := (*s)[status]; twice {
				return errors.New("is there twice")
			}
			(*s)[status] = word
			return nil
		})
	})
}

func (p *Park) decode(d *decoder, n *yaml.Node, path string) {
	if n.Kind == yaml.ScalarNode {
		d.parse(n, path, func(text string) error {
			*p = Park{}
			if text != "store" {
				return errors.New("must be store, or a mapping of exchange and routing_key")
			}
			return nil
		})
		return
	}
	*p = Park{ToBroker: true}
	v := reflect.ValueOf(p).Elem()
	d.mapping(n, path, func(key, value *yaml.Node) { d.field(key, value, v, path) })
}

// decode keeps the types that YAML gives the arguments; what a variable brings is
// a number where it looks like one.
func (a *Arguments) decode(d *decoder, n *yaml.Node, path string) {
	*a = Arguments{}
	d.mapping(n, path, func(key, value *yaml.Node) {
		at := join(path, key.Value)
		if value = d.resolve(value, at); value == nil {
			return
		}
		d.lines[at] = key.Line
		text, from, ok := d.scalar(value, at)
		if !ok {
			return
		}
		switch number, err := strconv.ParseInt(text, 0, 64); {
		case value.ShortTag() == "!!bool" && !from:
			(*a)[key.Value] = strings.EqualFold(text, "true")
		case value.ShortTag() == "!!float", value.ShortTag() == "!!int" && err != nil:
			d.addf(at, "is not a whole number of 64 bits")
		case err == nil && (from || value.ShortTag() == "!!int"):
			(*a)[key.Value] = number
		default:
			(*a)[key.Value] = text
		}
	})
}
