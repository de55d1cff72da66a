package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"
)

// smallBody is the limit of a request body that is no import.
const smallBody = 64 << 10

// contentPolicy lets the page load its own style and script, send forms to
// itself, and nothing else: no inline code, no frame, no other host.
const contentPolicy = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; " +
	"connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// guard is in front of every route of the admin side.
func (a *Admin) guard(next http.Handler) http.Handler {
	origin := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", contentPolicy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		if err := a.checkHost(r.Host); err != nil {
			a.refuse(w, r, err)
			return
		}
		// Sec-Fetch-Site, or Origin against Host; a client that is no browser
		// sends neither.
		if err := origin.Check(r); err != nil {
			a.refuse(w, r, forbidden("%v", err))
			return
		}
		if !strings.HasSuffix(r.URL.Path, "/import") {
			r.Body = http.MaxBytesReader(w, r.Body, smallBody)
		}
		next.ServeHTTP(w, r)
	})
}

// checkHost refuses names that a foreign page could have pointed at this
// address (DNS rebinding). With a token configured that gains nothing: a
// foreign name's page has neither token nor cookie.
func (a *Admin) checkHost(hostport string) *Problem {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if host == "localhost" || a.TokenFile != "" {
		return nil
	}
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return nil
	}
	for _, known := range a.Hosts {
		if strings.EqualFold(host, known) {
			return nil
		}
	}
	return forbidden("the host %q is not one of this daemon; use an IP address or localhost", hostport)
}

// refuse answers err and leaves a trace; of many refusals, one a minute.
func (a *Admin) refuse(w http.ResponseWriter, r *http.Request, err *Problem) {
	if n := a.refusal.pass(time.Now()); n > 0 {
		a.Log.Warn("admin request refused", "remote", r.RemoteAddr, "method", r.Method,
			"path", cut(r.URL.Path, 64), "reason", err.Detail, "since_last_line", n)
	}
	if err.Status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="inboxd"`)
	}
	writeProblem(w, err)
}

// gate lets one through a minute and counts the others.
type gate struct {
	mu   sync.Mutex
	next time.Time
	n    int
}

// pass returns how many were seen since the last one that passed, or 0 where
// this one does not pass.
func (g *gate) pass(now time.Time) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.n++
	if now.Before(g.next) {
		return 0
	}
	n := g.n
	g.n, g.next = 0, now.Add(time.Minute)
	return n
}

// token is one line of the token file.
type token struct {
	name string // "token" where the line gives none
	hash [sha256.Size]byte
}

var errNoToken = errors.New("the token file holds no token")

// readTokens reads the token file: `TOKEN` or `NAME TOKEN` a line; empty lines
// and lines that begin with # say nothing.
func readTokens(file string) ([]token, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading the token file: %w", err)
	}
	var ts []token
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		switch {
		case len(f) == 0 || strings.HasPrefix(f[0], "#"):
		case len(f) == 1:
			ts = append(ts, token{"token", sha256.Sum256([]byte(f[0]))})
		default:
			ts = append(ts, token{f[0], sha256.Sum256([]byte(f[1]))})
		}
	}
	if len(ts) == 0 {
		return nil, errNoToken
	}
	return ts, nil
}

// checkToken returns the token whose text is given. Hashes of equal length are
// compared, every one of them, so that the time taken tells nothing.
func (a *Admin) checkToken(text string) (token, error) {
	ts, err := readTokens(a.TokenFile)
	if err != nil {
		a.Log.Error("nobody can be let in", "err", err)
		return token{}, problem(ProblemUnavailable, http.StatusServiceUnavailable,
			"Nobody can be let in", "the daemon's token file cannot be used; its log says why")
	}
	hash := sha256.Sum256([]byte(text))
	var found *token
	for i := range ts {
		if subtle.ConstantTimeCompare(hash[:], ts[i].hash[:]) == 1 {
			found = &ts[i]
		}
	}
	if found == nil || text == "" {
		return token{}, unauthorized("the token is wrong")
	}
	return *found, nil
}

func unauthorized(detail string) *Problem {
	return problem(ProblemUnauthorized, http.StatusUnauthorized, "Who are you?", "%s", detail)
}

func bearer(r *http.Request) (string, bool) {
	scheme, text, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	return strings.TrimSpace(text), ok && strings.EqualFold(scheme, "Bearer")
}

// authorizeAPI lets a request to the API in: with the bearer token, or, for
// reading alone, with a session of the page.
func (a *Admin) authorizeAPI(r *http.Request) (caller, error) {
	if a.TokenFile == "" {
		return newCaller(r, ""), nil
	}
	if text, ok := bearer(r); ok {
		t, err := a.checkToken(text)
		return newCaller(r, t.name), err
	}
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		if s, ok := a.session(r); ok {
			return s.caller(r), nil
		}
	}
	return caller{}, unauthorized("send the header Authorization: Bearer with a token from the daemon's admin.token_file")
}

// caller is who asks, for log and audit table.
type caller struct {
	name  string // what the caller calls itself, "" for nothing
	token string // the name of the token, "" without one
	addr  string
	page  bool
}

func newCaller(r *http.Request, token string) caller {
	return caller{name: clean(r.Header.Get("X-Inboxd-Actor"), 64), token: token, addr: remoteHost(r)}
}

// String is the actor of an audit entry. A name that the caller gave itself
// never hides which token was used and from where.
func (c caller) String() string {
	var b strings.Builder
	if c.name != "" {
		b.WriteString(c.name + " ")
	}
	b.WriteString("(")
	switch {
	case c.token != "" && c.page:
		b.WriteString("page, " + c.token + ", ")
	case c.page:
		b.WriteString("page, ")
	case c.token != "":
		b.WriteString(c.token + ", ")
	}
	b.WriteString(c.addr + ")")
	return b.String()
}

func remoteHost(r *http.Request) string {
	if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		return host
	}
	return clean(r.RemoteAddr, 64)
}

// clean makes text from outside fit for a log line or a table: printable, cut
// after n characters.
func clean(s string, n int) string {
	s = strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f || c == '\u2028' || c == '\u2029' || c == '\ufffd' || (c >= 0x80 && c < 0xa0) || isBidi(c) {
			return -1
		}
		return c
	}, s)
	return cut(strings.TrimSpace(s), n)
}

// isBidi reports the characters that turn the direction of what follows.
func isBidi(c rune) bool {
	return c >= 0x202a && c <= 0x202e || c >= 0x2066 && c <= 0x2069 || c == 0x200e || c == 0x200f
}

func cut(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n-1]) + "…"
}
