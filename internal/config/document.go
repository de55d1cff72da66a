package config

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"
)

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
