package config

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Validate checks every rule that needs no network. Its error is Problems. A
// Config from Parse or Load has been checked.
func (c Config) Validate() error {
	r := newReport()
	c.validate(r)
	return r.err()
}

func (c *Config) validate(r *report) {
	c.Broker.validate(r)
	c.Store.validate(r)
	c.validateConsumers(r)
	c.validateEndpoints(r)
	r.word("readyz", c.Readyz, ReadyzStarted, ReadyzStrict)
	r.positive("shutdown_timeout", c.ShutdownTimeout)
	if c.MaxInHand < 0 {
		r.check("max_in_hand", fmt.Errorf("must be auto or a size, got %d", int64(c.MaxInHand)))
	}
	r.word("log.level", c.Log.Level, "debug", "info", "warn", "error")
	r.word("log.format", c.Log.Format, "json", "text")
}

// check reports err under path, unless something there is wrong already.
func (r *report) check(path string, err error) {
	if err != nil && !r.failed(path) {
		r.addf(path, "%v", err)
	}
}

func (r *report) word(path, got string, allowed ...string) {
	err := oneOf(got, allowed...)
	if err != nil && !r.fromEnv[path] && len(got) <= 20 {
		err = fmt.Errorf("%q %w", got, err)
	}
	r.check(path, err)
}

func oneOf(got string, allowed ...string) error {
	if slices.Contains(allowed, got) {
		return nil
	}
	last := len(allowed) - 1
	return errors.New("must be " + strings.Join(allowed[:last], ", ") + " or " + allowed[last] + suggestion(got, allowed...))
}

func (r *report) positive(path string, d time.Duration) {
	if d <= 0 {
		r.check(path, fmt.Errorf("must be more than zero, got %s", formatDuration(d)))
	}
}

func (r *report) notNegative(path string, d time.Duration) {
	if d < 0 {
		r.check(path, fmt.Errorf("must not be negative, got %s", formatDuration(d)))
	}
}

func (r *report) between(path string, got, least, most int) {
	if got < least || got > most {
		r.check(path, fmt.Errorf("must be %d to %d, got %d", least, most, got))
	}
}

// file checks that a file which the configuration names can be read and holds
// something. It does not show the name: it happens that the secret itself is
// written where the name of its file should be.
func (r *report) file(path, name string) {
	if name == "" {
		return
	}
	info, err := os.Stat(name)
	if err == nil && info.Mode().IsRegular() { // opening a pipe would wait for its writer
		var f *os.File
		if f, err = os.Open(name); err == nil {
			_ = f.Close()
		}
	}
	switch {
	case err != nil:
		err = fmt.Errorf("names a file that cannot be read: %w", cause(err))
	case info.IsDir():
		err = errors.New("names a directory")
	case info.Mode().IsRegular() && info.Size() == 0:
		err = errors.New("names an empty file")
	}
	r.check(path, err)
}

// cause is what went wrong without the name of the file.
func cause(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

func (t TLS) validate(r *report, path string, used bool) {
	r.file(path+".ca_file", t.CAFile)
	r.file(path+".cert_file", t.CertFile)
	r.file(path+".key_file", t.KeyFile)
	switch {
	case t.CertFile != "" && t.KeyFile == "":
		r.check(path+".key_file", errors.New("is missing: cert_file needs its key"))
	case t.KeyFile != "" && t.CertFile == "":
		r.check(path+".cert_file", errors.New("is missing: key_file needs its certificate"))
	case t != TLS{} && !used:
		r.check(path, errors.New("is set, but no URL beside it uses TLS"))
	}
}

// url checks the form of a URL and its scheme, and returns its parts, nil where
// there is a problem.
func (r *report) url(path string, u URL, schemes ...string) *url.URL {
	if u.IsZero() {
		r.check(path, errors.New("is required"))
		return nil
	}
	parsed, err := u.Parse()
	switch {
	case err != nil:
	case !slices.Contains(schemes, parsed.Scheme):
		err = errors.New("must be a URL that begins with " + strings.Join(schemes, ", "))
	case !strings.HasPrefix(u.Reveal(), parsed.Scheme):
		err = fmt.Errorf("must have its scheme in lower case: %s", parsed.Scheme)
	case parsed.Scheme == "sqlite" || parsed.Scheme == "http+unix":
	case parsed.Host == "" || parsed.Hostname() == "":
		err = fmt.Errorf("needs a host: %s://HOST", parsed.Scheme)
	case parsed.User == nil && strings.Contains(parsed.Path, "@"):
		err = errors.New("has an @ behind the host; special characters in user name and password are to be percent-encoded")
	}
	if err != nil {
		r.check(path, err)
		return nil
	}
	return parsed
}

func (b Broker) validate(r *report) {
	tls := false
	switch {
	case len(b.URLs) == 0:
		u := r.url("broker.url", b.URL, "amqp", "amqps")
		tls = u == nil || u.Scheme == "amqps"
	case !b.URL.IsZero():
		r.check("broker.urls", errors.New("cannot be set beside broker.url; put all of them into urls"))
	}
	for i, u := range b.URLs {
		parsed := r.url(fmt.Sprintf("broker.urls[%d]", i), u, "amqp", "amqps")
		tls = tls || parsed == nil || parsed.Scheme == "amqps"
	}
	r.file("broker.password_file", b.PasswordFile)
	b.TLS.validate(r, "broker.tls", tls)
	if b.ConsumerTimeout < 0 {
		r.check("broker.consumer_timeout", errors.New("must not be negative; 0s is for a broker that has no consumer timeout"))
	}
}

// SQLitePath returns the path of the database file; ok is false where the store
// is not SQLite.
func (s Store) SQLitePath() (path string, ok bool) {
	rest, ok := strings.CutPrefix(s.URL.Reveal(), "sqlite:")
	return strings.TrimPrefix(rest, "//"), ok
}

func (s Store) validate(r *report) {
	if path, ok := s.SQLitePath(); ok {
		switch {
		case path == "":
			r.check("store.url", errors.New("needs a path: sqlite:inboxd.db or sqlite:/var/lib/inboxd/inboxd.db"))
		case path == ":memory:", strings.ContainsAny(path, "?#"):
			r.check("store.url", errors.New("must be sqlite: and the path of a file, and nothing else"))
		}
		if s.PasswordFile != "" {
			r.check("store.password_file", errors.New("is set, but a SQLite store has no password"))
		}
	} else if !s.URL.IsZero() && !strings.Contains(s.URL.Reveal(), "://") {
		r.check("store.url", errors.New("must be sqlite:PATH or postgres://USER@HOST/DATABASE"))
	} else {
		r.url("store.url", s.URL, "sqlite", "postgres", "postgresql")
	}
	r.file("store.password_file", s.PasswordFile)
	r.positive("store.retention", s.Retention)
	r.word("store.leases", s.Leases, LeasesAuto, LeasesAlways, LeasesNever)
}

func (c *Config) validateEndpoints(r *report) {
	r.listen("metrics.listen", c.Metrics.Listen)
	host, ok := r.listen("admin.listen", c.Admin.Listen)
	r.file("admin.token_file", c.Admin.TokenFile)
	if ok && !isLoopback(host) && c.Admin.TokenFile == "" {
		r.check("admin.token_file", errors.New("is required, because admin.listen is not a loopback address: whoever reaches it could discard messages"))
	}
	if c.Admin.Listen != "" && c.Admin.Listen == c.Metrics.Listen && !strings.HasSuffix(c.Admin.Listen, ":0") {
		r.check("admin.listen", errors.New("must differ from metrics.listen"))
	}
	for i, h := range c.Admin.AllowedHosts {
		if !hostName.MatchString(h) {
			r.check(fmt.Sprintf("admin.allowed_hosts[%d]", i), errors.New("must be a host name, without scheme and port"))
		}
	}
}

var hostName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,252}[A-Za-z0-9])?$`)

// listen checks an address; ok is false where there is none to judge.
func (r *report) listen(path, address string) (host string, ok bool) {
	if address == "" {
		return "", false
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		r.check(path, errors.New("must be HOST:PORT or :PORT"))
		return "", false
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		r.check(path, errors.New("must end with a port from 0 to 65535"))
		return "", false
	}
	if host != "" && net.ParseIP(host) == nil && !hostName.MatchString(host) {
		r.check(path, errors.New("must begin with an IP address or a host name, or with the colon"))
		return "", false
	}
	return host, true
}

func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
