package config

import (
	"bytes"
	"encoding"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"time"

	"gopkg.in/yaml.v3"
)

// Redacted returns the whole configuration as YAML, defaults and all, with
// "<redacted>" in the place of secrets.
func (c Config) Redacted() []byte {
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(dump(reflect.ValueOf(c))); err != nil {
		panic(fmt.Sprintf("config: %v", err)) // only of nodes that dump made wrongly
	}
	return b.Bytes()
}

// dump turns a value into YAML as the file has it, with durations and sizes in
// the form that people write.
func dump(v reflect.Value) *yaml.Node {
	switch x := v.Interface().(type) {
	case time.Duration:
		return word(formatDuration(x))
	case MessageID:
		return dumpSources(x)
	case Park:
		if !x.ToBroker {
			return word("store")
		}
	case encoding.TextMarshaler: // URL, Secret, Size, Fingerprint
		text, _ := x.MarshalText()
		return word(string(text))
	}
	switch v.Kind() {
	case reflect.Struct:
		n := &yaml.Node{Kind: yaml.MappingNode}
		for i := range v.NumField() {
			if key := yamlKey(v.Type().Field(i)); key != "" {
				n.Content = append(n.Content, word(key), dump(v.Field(i)))
			}
		}
		return n
	case reflect.Slice:
		n := &yaml.Node{Kind: yaml.SequenceNode}
		for i := range v.Len() {
			n.Content = append(n.Content, dump(v.Index(i)))
		}
		return flowIfEmpty(n)
	case reflect.Map:
		n := &yaml.Node{Kind: yaml.MappingNode}
		m := map[string]reflect.Value{}
		for _, k := range v.MapKeys() {
			m[k.String()] = v.MapIndex(k)
		}
		for _, k := range slices.Sorted(maps.Keys(m)) {
			n.Content = append(n.Content, word(k), dump(m[k]))
		}
		return flowIfEmpty(n)
	case reflect.Interface:
		return dump(v.Elem())
	case reflect.Bool:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: strconv.FormatBool(v.Bool())}
	case reflect.Int, reflect.Int64:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!int", Value: strconv.FormatInt(v.Int(), 10)}
	}
	return word(v.String())
}

func dumpSources(m MessageID) *yaml.Node {
	list := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
	for _, parts := range m {
		inner := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
		for _, s := range parts {
			inner.Content = append(inner.Content, word(s.String()))
		}
		if len(parts) == 1 {
			inner = inner.Content[0]
		}
		list.Content = append(list.Content, inner)
	}
	return list
}

func word(s string) *yaml.Node {
	n := &yaml.Node{}
	n.SetString(s)
	return n
}

func flowIfEmpty(n *yaml.Node) *yaml.Node {
	if len(n.Content) == 0 {
		n.Style = yaml.FlowStyle
	}
	return n
}
