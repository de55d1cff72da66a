package config

import (
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
)

// Parse reads a configuration from r, with the variables of getenv filled in,
// on top of the defaults. Where anything is wrong the error is Problems: all of
// them, whatever they are. An unknown key is a problem too, because a setting
// that silently does nothing is worse than no start.
//
// Parse reads nothing but r and, to check that they are there, the files that
// the configuration names.
func Parse(r io.Reader, getenv Getenv) (Config, error) {
	return parse(r, getenv, func(string) bool { return true })
}

// parse counts only the problems of paths that matter.
func parse(r io.Reader, getenv Getenv, matters func(path string) bool) (Config, error) {
	root, err := readDocument(r)
	if err != nil {
		return Config{}, err
	}
	c := Default()
	d := &decoder{report: newReport(), getenv: getenv}
	if root != nil {
		d.value(root, reflect.ValueOf(&c).Elem(), "")
	}
	c.derive(d.report)
	c.validate(d.report)
	d.problems = slices.DeleteFunc(d.problems, func(p Problem) bool { return !matters(p.Path) })
	if err := d.err(); err != nil {
		return Config{}, err
	}
	return c, nil
}

// Load parses the file at path with the environment of the process.
func Load(path string) (Config, error) {
	return load(path, func(string) bool { return true })
}

// LoadEndpoints parses the file at path for a program that only wants to reach the
// daemon of that configuration: Metrics and Admin are as Load returns them, the
// rest may be incomplete. A mistake elsewhere, or a secret that is not there in this
// moment, must not fail a probe, which would have a daemon killed that is well.
func LoadEndpoints(path string) (Config, error) {
	return load(path, func(at string) bool {
		return slices.Contains([]string{"", "metrics", "metrics.listen", "admin", "admin.listen"}, at)
	})
}

func load(path string, matters func(string) bool) (Config, error) {
	f, err := os.Open(path)
	if err != nil {
		return Config{}, fmt.Errorf("reading the configuration: %w", err)
	}
	defer f.Close()
	c, err := parse(f, os.LookupEnv, matters)
	if err != nil {
		return Config{}, fmt.Errorf("%s:\n%w", path, err)
	}
	return c, nil
}

// derive fills in the defaults that depend on what else the file sets.
func (c *Config) derive(r *report) {
	if len(c.Broker.URLs) > 0 && !r.isSet("broker.url") {
		c.Broker.URL = URL{}
	}
	for i := range c.Consumers {
		c.Consumers[i].derive(r, fmt.Sprintf("consumers[%d]", i))
	}
}

// derive keeps the concurrency within a prefetch that is set alone.
func (c *Consumer) derive(r *report, path string) {
	if c.Prefetch > 0 && !r.isSet(path+".concurrency") {
		c.Concurrency = min(c.Concurrency, int(c.Prefetch))
	}
}
