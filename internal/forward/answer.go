package forward

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
)

// read turns a reply into a verdict.
func (f *Forwarder) read(r reply, killed bool) judged {
	var j judged
	switch {
	case r.err == nil:
		return f.readStatus(r)
	case killed && !r.reached:
		j.Verdict, j.Err = inbox.NotSent, ErrKilled
	case errors.Is(r.err, errTimeout) && !r.reached:
		j.Verdict, j.Err = inbox.Unreachable, fmt.Errorf("no connection to the handler within %s", f.opts.Timeout)
	case !r.reached:
		j.Verdict, j.Err = inbox.Unreachable, fmt.Errorf("connecting to the handler: %w", r.err)
	case isTLSRefusal(r.err):
		j.Verdict, j.Err = inbox.Unreachable, fmt.Errorf("the handler refuses the TLS connection: %w", r.err)
	case killed:
		j.Verdict, j.Err = inbox.NoAnswer, ErrKilled
	case errors.Is(r.err, errTimeout):
		j.Verdict, j.Err = inbox.NoAnswer, fmt.Errorf("no answer within %s", f.opts.Timeout)
	case r.answered:
		// The error itself may quote what came.
		j.Verdict, j.Err = inbox.NoAnswer, errors.New("the answer is not HTTP/1.1, too large, or cut off in its header")
	default:
		j.Verdict, j.Cut = inbox.NoAnswer, true
		j.Err = fmt.Errorf("the connection ended before an answer: %w", r.err)
	}
	return j
}

func (f *Forwarder) readStatus(r reply) judged {
	j := judged{Answer: inbox.Answer{Status: r.status, Excerpt: r.excerpt}}
	if r.status == http.StatusSwitchingProtocols {
		j.Verdict, j.Err = inbox.NoAnswer, errors.New("the handler answered 101 Switching Protocols")
		return j
	}
	j.Verdict = f.opts.Status.verdict(r.status)
	if r.action != "" {
		if v, ok := actionVerdict(r.action); ok {
			j.Verdict, j.explicit = v, true
		}
	}
	if j.Verdict == inbox.Done {
		return j
	}
	j.RetryAfter = parseRetryAfter(r.retryAfter, time.Now())
	text := http.StatusText(r.status)
	if text != "" {
		text = " " + text
	}
	j.Err = fmt.Errorf("the handler answered %d%s", r.status, text)
	if j.explicit {
		j.Err = fmt.Errorf("%w and Inbox-Action: %s", j.Err, strings.ToLower(strings.TrimSpace(r.action)))
	}
	return j
}

// signs of well-known refusals in an answer's body, lower case.
var signs = []struct{ sign, cause string }{
	{"disallowedhost", "a host check refuses the Host header: allow the host of forward.url (Django: ALLOWED_HOSTS)"},
	{"invalid http_host header", "a host check refuses the Host header: allow the host of forward.url (Django: ALLOWED_HOSTS)"},
	{"allowed_hosts", "a host check refuses the Host header: allow the host of forward.url (Django: ALLOWED_HOSTS)"},
	{"<h1>bad request (400)</h1>", "probably a host check: allow the host of forward.url (Django: ALLOWED_HOSTS)"},
	{"blocked host", "a host check refuses the Host header: allow the host of forward.url (Rails: config.hosts)"},
	{"invalid host header", "a host check refuses the Host header: allow the host of forward.url"},
	{"csrf", "a CSRF check refuses the request: exempt the route from it"},
	{"authenticity_token", "a CSRF check refuses the request: exempt the route from it"},
	{"authenticitytoken", "a CSRF check refuses the request: exempt the route from it"},
	{"the change you wanted was rejected", "probably a CSRF check: exempt the route from it"},
	{"request was sent to https port", "the port speaks TLS: write https in forward.url"},
	{"http request to an https server", "the port speaks TLS: write https in forward.url"},
	{"speaking plain http to an ssl", "the port speaks TLS: write https in forward.url"},
}

// likelyCause names in our own words what a refusal usually comes from, "" where
// there is nothing to name.
func (f *Forwarder) likelyCause(r reply, d *inbox.Delivery) string {
	body := bytes.ToLower(r.excerpt)
	for _, s := range signs {
		if bytes.Contains(body, []byte(s.sign)) {
			return s.cause
		}
	}
	switch r.status {
	case http.StatusBadRequest, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity:
		if f.mapper.contentType == "" && strings.Trim(d.Properties.ContentType, " \t") == "" {
			return "the message has no content type and was sent as " + defaultContentType +
				": set forward.content_type (for example application/json)"
		}
		if r.status == http.StatusUnsupportedMediaType {
			return "the handler does not take the message's content type or encoding: see forward.content_type"
		}
	case http.StatusRequestEntityTooLarge:
		return "the body is above the handler's limit: raise that one, or lower max_body"
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusProxyAuthRequired:
		return "the handler wants credentials: see forward.token_file, forward.tls, and the route's own checks"
	case http.StatusNotFound:
		return "there is no such route (see the path in forward.url), or the handler answers 404 for the message itself (see forward.status)"
	case http.StatusMethodNotAllowed:
		return "the route takes no POST: see the path in forward.url"
	case http.StatusMisdirectedRequest:
		return "the server is not responsible for the host in forward.url"
	case http.StatusRequestHeaderFieldsTooLarge:
		return "the request's header is above the handler's limit: raise it above 16 KiB"
	}
	if r.status/100 == 3 {
		return redirectCause(f.target, r.location)
	}
	return ""
}

func redirectCause(t target, location string) string {
	u, err := t.url.Parse(location)
	switch {
	case location == "" || err != nil:
	case u.Path == t.url.Path+"/":
		return "redirects are not followed, and this one adds a slash: write it into forward.url"
	case u.Scheme == "https" && t.url.Scheme == "http":
		return "redirects are not followed, and this one leads to https: write that into forward.url"
	}
	return "redirects are not followed: write the final address into forward.url"
}
