package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"strings"
)

// redacted stands where a secret was.
const redacted = "<redacted>"

// Secret is a text that no formatting verb, encoder or logger prints. The text
// is behind a pointer, so that fmt shows an address even where a Secret is in an
// unexported field, whose methods fmt cannot call.
type Secret struct{ text *string }

// NewSecret returns text as a Secret.
func NewSecret(text string) Secret { return Secret{&text} }

// Reveal returns the text itself.
func (s Secret) Reveal() string {
	if s.text == nil {
		return ""
	}
	return *s.text
}

// String returns "<redacted>", or "" for an empty Secret.
func (s Secret) String() string {
	if s.Reveal() == "" {
		return ""
	}
	return redacted
}

// Format prints what String returns, whatever the verb.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// MarshalText makes encoding/json print what String returns.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// MarshalYAML makes yaml print what String returns.
func (s Secret) MarshalYAML() (any, error) { return s.String(), nil }

// LogValue makes slog print what String returns.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// maxSecret bounds the files that ReadSecret reads.
const maxSecret = 64 << 10

// ReadSecret returns the contents of a file without the line ends behind them.
// An empty file is an error: it is how a secret looks that is not mounted yet.
func ReadSecret(path string) (Secret, error) {
	f, err := os.Open(path)
	if err != nil {
		return Secret{}, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxSecret+1))
	switch b = bytes.TrimRight(b, "\r\n"); {
	case err != nil:
		return Secret{}, err
	case len(b) == 0:
		return Secret{}, fmt.Errorf("%s is empty", path)
	case len(b) > maxSecret:
		return Secret{}, fmt.Errorf("%s is longer than %d bytes", path, maxSecret)
	}
	return NewSecret(string(b)), nil
}

// URL is a URL that may hold a password. Like a Secret it prints redacted, but
// shows everything else; a URL that cannot be parsed shows nothing.
type URL struct{ raw *string }

// NewURL returns raw as a URL; it is not checked.
func NewURL(raw string) URL {
	if raw == "" {
		return URL{}
	}
	return URL{&raw}
}

// Reveal returns the URL itself, password and all.
func (u URL) Reveal() string {
	if u.raw == nil {
		return ""
	}
	return *u.raw
}

// IsZero reports whether there is no URL.
func (u URL) IsZero() bool { return u.raw == nil }

// Parse returns the parts of the URL. Its error shows nothing of the URL.
func (u URL) Parse() (*url.URL, error) {
	parsed, err := url.Parse(u.Reveal())
	if err != nil {
		return nil, errors.New("is not a URL (special characters in user name and password are to be percent-encoded)")
	}
	return parsed, nil
}

// String returns the URL with "<redacted>" for its password, and for every
// parameter that is not known to be harmless. Where it is not clear which part
// is a password it shows nothing at all.
func (u URL) String() string {
	if u.IsZero() {
		return ""
	}
	parsed, err := u.Parse()
	if err != nil {
		return redacted
	}
	var shown string
	rest, isHierarchical := strings.CutPrefix(u.Reveal(), parsed.Scheme+"://")
	_, afterHost, _ := strings.Cut(rest, "/")
	switch {
	case parsed.Scheme == "sqlite":
		shown, _, _ = strings.Cut(u.Reveal(), "?")
	case !isHierarchical, parsed.User == nil && strings.Contains(rest, "@"), strings.Contains(afterHost, "@"):
		// A slash, a question mark or a number sign in a password makes the
		// password's end look like a path.
		return redacted
	default:
		shown = parsed.Scheme + "://" + redactUser(parsed) + parsed.Host + parsed.EscapedPath()
	}
	if parsed.RawQuery != "" {
		shown += "?" + redactQuery(parsed.RawQuery)
	}
	if parsed.Fragment != "" {
		shown += "#" + redacted
	}
	return shown
}

// redactUser shows the name, except where HTTP has a token in its place.
func redactUser(u *url.URL) string {
	if u.User == nil {
		return ""
	}
	name := url.User(u.User.Username()).String()
	switch _, hasPassword := u.User.Password(); {
	case hasPassword:
		return name + ":" + redacted + "@"
	case strings.HasPrefix(u.Scheme, "http"):
		return redacted + "@"
	}
	return name + "@"
}

// harmless are the parameters that database and broker URLs commonly have.
var harmless = map[string]bool{
	"sslmode": true, "sslrootcert": true, "sslcert": true, "sslkey": true, "connect_timeout": true,
	"application_name": true, "target_session_attrs": true, "search_path": true, "port": true, "host": true,
	"heartbeat": true, "connection_timeout": true, "channel_max": true, "auth_mechanism": true,
}

func redactQuery(raw string) string {
	params := strings.Split(raw, "&")
	for i, p := range params {
		name, value, ok := strings.Cut(p, "=")
		if plain, err := url.QueryUnescape(name); ok && value != "" && (err != nil || !harmless[plain]) {
			params[i] = name + "=" + redacted
		} else if !ok {
			params[i] = redacted
		}
	}
	return strings.Join(params, "&")
}

// Format prints what String returns, whatever the verb.
func (u URL) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, u.String()) }

// MarshalText makes encoding/json print what String returns.
func (u URL) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// MarshalYAML makes yaml print what String returns.
func (u URL) MarshalYAML() (any, error) { return u.String(), nil }

// LogValue makes slog print what String returns.
func (u URL) LogValue() slog.Value { return slog.StringValue(u.String()) }
