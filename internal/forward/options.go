package forward

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
)

// KeyFormat is the form of the Idempotency-Key header.
type KeyFormat string

// The forms.
const (
	KeyRaw    KeyFormat = "raw"    // the canonical message ID as it is
	KeyQuoted KeyFormat = "quoted" // a structured-field string, as the IETF draft has it
)

// TLSFiles are the files of an https target. They are read again when they
// change.
type TLSFiles struct {
	CAFile   string // instead of the system's roots
	CertFile string
	KeyFile  string
}

// Options configure a Forwarder. Zero fields have the defaults named below.
type Options struct {
	ConsumerName string // required; visible ASCII
	// URL is where messages go: http, https, or a unix socket as
	// http+unix:///run/app.sock:/messages. Required.
	URL string
	// HealthURL is asked before consuming starts and all the time afterwards;
	// "" means that the application is taken to be there. Same forms as URL.
	HealthURL string
	// Timeout bounds one request from the dial to the end of the answer.
	Timeout time.Duration // 30s
	// Concurrency is the number of requests in flight at most.
	Concurrency    int       // 16
	IdempotencyKey KeyFormat // raw
	ContentType    string    // instead of the message's own
	Status         StatusOverrides
	TokenFile      string // bearer token; read again while running
	TLS            TLSFiles
	Breaker        BreakerOptions
	// Evidence, where set, is asked after a request that failed or got no answer
	// whether the application has processed the message all the same (shared
	// mode: its row is there). True makes it Done, before anything counts as a
	// failure. It must not wait for long; where it does not know it says false.
	Evidence func(*inbox.Delivery) bool
	// OnGone is called when a 410 pauses the consumer, after the gate is shut,
	// so that the pause can be kept across a restart. It must not block for
	// long. May be nil.
	OnGone func(why string)
}

// BreakerOptions tune the breaker. The defaults fit a handler beside us; they
// are not part of the configuration file.
type BreakerOptions struct {
	Unreachable  int           // 3: connection failures in a row that open it
	Misconfigure int           // 3: different messages in a row whose answers blame the set-up
	Refusals     int           // 10: different messages refused with no success between them
	MinRequests  int           // 20: requests in the window below which no rate is taken
	FailureRate  float64       // 0.5
	Window       time.Duration // 10s
	// ConnPause bounds the pause between two dials of an application that is
	// not there, and between two health checks; MessagePause that between two
	// probes with a message.
	ConnPause    time.Duration // 1s
	MessagePause time.Duration // 90s
	// GateAfter is how long the breaker may be open before the consumer is
	// cancelled and its messages go back to the broker.
	GateAfter time.Duration // 1m
}

const maxDialTime = 5 * time.Second

func (o *Options) setDefaults() {
	setDefault(&o.Timeout, 30*time.Second)
	setDefault(&o.Concurrency, 16)
	setDefault(&o.IdempotencyKey, KeyRaw)
	b := &o.Breaker
	setDefault(&b.Unreachable, 3)
	setDefault(&b.Misconfigure, 3)
	setDefault(&b.Refusals, 10)
	setDefault(&b.MinRequests, 20)
	setDefault(&b.FailureRate, 0.5)
	setDefault(&b.Window, 10*time.Second)
	setDefault(&b.ConnPause, time.Second)
	setDefault(&b.MessagePause, 90*time.Second)
	setDefault(&b.GateAfter, time.Minute)
}

func setDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

func (o *Options) validate() error {
	var errs []error
	if o.ConsumerName == "" || !isPlainValue(o.ConsumerName) {
		errs = append(errs, fmt.Errorf("consumer name: must be visible ASCII, got %q", o.ConsumerName))
	}
	if o.Timeout < 0 {
		errs = append(errs, fmt.Errorf("timeout: must be positive, got %s", o.Timeout))
	}
	if o.Concurrency < 1 {
		errs = append(errs, fmt.Errorf("concurrency: must be at least 1, got %d", o.Concurrency))
	}
	if o.IdempotencyKey != KeyRaw && o.IdempotencyKey != KeyQuoted {
		errs = append(errs, fmt.Errorf("idempotency_key: must be raw or quoted, got %q", o.IdempotencyKey))
	}
	if !isPlainValue(o.ContentType) {
		errs = append(errs, fmt.Errorf("content_type: must be visible ASCII, got %q", o.ContentType))
	}
	if (o.TLS.CertFile == "") != (o.TLS.KeyFile == "") {
		errs = append(errs, errors.New("tls: cert_file and key_file belong together"))
	}
	return errors.Join(errs...)
}

// target is an address that requests go to.
type target struct {
	socket string   // path of a unix socket, "" for TCP
	url    *url.URL // scheme http or https, without user information
	user   *url.Userinfo
}

// parseTarget reads one of the three forms of URL. Its errors never show user
// information.
func parseTarget(s string) (target, error) {
	if rest, ok := strings.CutPrefix(s, "http+unix://"); ok {
		return parseUnixTarget(rest)
	}
	u, err := url.Parse(s)
	if err != nil {
		// The parser's text quotes the URL, or takes a part of a password for a port.
		return target{}, errors.New("is not a URL (special characters in user name and password are to be percent-encoded)")
	}
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return target{}, fmt.Errorf("scheme must be http, https or http+unix, got %q", u.Scheme)
	case u.Hostname() == "":
		return target{}, errors.New("no host in it")
	case u.Fragment != "":
		return target{}, errors.New("a fragment is never sent")
	}
	t := target{user: u.User}
	u.User = nil
	t.url = u
	return t, nil
}

func parseUnixTarget(rest string) (target, error) {
	socket, path, _ := strings.Cut(rest, ":")
	if !strings.HasPrefix(socket, "/") {
		return target{}, errors.New("the form is http+unix:///path/of.sock:/path/of/route")
	}
	if path == "" {
		path = "/"
	}
	if !strings.HasPrefix(path, "/") {
		return target{}, fmt.Errorf("the route after the socket must begin with /, got %q", path)
	}
	// The host is what the application sees in Host; localhost passes the usual
	// host checks.
	u, err := url.Parse("http://localhost" + path)
	if err != nil {
		return target{}, errors.New("the route after the socket is not a valid path")
	}
	if u.Fragment != "" {
		return target{}, errors.New("a fragment is never sent")
	}
	return target{socket: socket, url: u}, nil
}

// sameServer reports whether t and o are one server, so that credentials for
// one may be shown to the other.
func (t target) sameServer(o target) bool {
	return t.socket == o.socket && t.url.Scheme == o.url.Scheme && t.url.Host == o.url.Host
}

// String is fit for logs.
func (t target) String() string {
	if t.socket != "" {
		return "http+unix://" + t.socket + ":" + t.url.RequestURI()
	}
	return t.url.Scheme + "://" + t.url.Host + t.url.Path
}
