package config

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"
)

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
