package forward

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/inboxd/inboxd/internal/inbox"
)

// Examine looks at the application as far as that goes without a message, for
// `inboxd check`: it connects to the target and hangs up, and asks the health
// URL. The route of the messages gets no request of any method, as frameworks
// run application code for all of them.
func Examine(ctx context.Context, o Options) []inbox.Finding {
	o.setDefaults()
	o.OnGone = nil
	var r report
	f, err := New(o, inbox.NewGate(), slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	for _, problem := range flatten(err) {
		r.fail("forward", "mend the keys under forward: of the consumer, and the files that they name", "%v", problem)
	}
	if t, err := parseTarget(o.URL); err == nil {
		r.target(ctx, t, o)
	}
	if f == nil {
		return r
	}
	defer f.Kill()
	r.files(o)
	r.health(ctx, f)
	if o.ContentType == "" {
		r.ok("forward.content_type", "a message without a content type is sent as %s, which many frameworks answer with 415 or 422: set this key (for example to application/json) where producers set none", defaultContentType)
	}
	return r
}

// flatten takes joined errors apart.
func flatten(err error) []error {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var all []error
	for _, e := range joined.Unwrap() {
		all = append(all, flatten(e)...)
	}
	return all
}

// report collects findings.
type report []inbox.Finding

func (r *report) ok(subject, detail string, args ...any) {
	*r = append(*r, inbox.Finding{Level: inbox.LevelOK, Subject: subject, Detail: fmt.Sprintf(detail, args...)})
}

func (r *report) warn(subject, remedy, detail string, args ...any) {
	*r = append(*r, inbox.Finding{Level: inbox.LevelWarn, Subject: subject, Detail: fmt.Sprintf(detail, args...), Remedy: remedy})
}

func (r *report) fail(subject, remedy, detail string, args ...any) {
	*r = append(*r, inbox.Finding{Level: inbox.LevelFail, Subject: subject, Detail: fmt.Sprintf(detail, args...), Remedy: remedy})
}

const subjectURL = "forward.url"

func (r *report) target(ctx context.Context, t target, o Options) {
	d := &dialer{target: t, timeout: min(o.Timeout, maxDialTime), tls: &tlsFiles{files: o.TLS}}
	host := t.url.Hostname()
	local := t.socket != "" || isLoopbackName(host)
	addr, err := d.visit(ctx)
	if err != nil {
		r.fail(subjectURL, remedy(t, err), "%s cannot be reached: %v", t, err)
	} else {
		local = local || addr.IP.IsLoopback()
		r.ok(subjectURL, "%s takes connections; requests carry Host: %s", t, t.url.Host)
	}
	if t.socket == "" && isLocalhost(host) {
		r.warn(subjectURL, "write 127.0.0.1, or [::1], whichever the application listens on",
			"%s stands for ::1 and for 127.0.0.1, in this order on most machines: another program on the other address may get the messages", host)
	}
	if !local && t.url.Scheme == "http" {
		r.warn(subjectURL, "run inboxd beside the application and use a loopback address or a socket, or use https",
			"%s is another machine or container: messages go there in the clear", host)
	}
}

// visit connects as a request would, TLS included, and hangs up. The address is
// zero for a socket.
func (d *dialer) visit(ctx context.Context) (addr net.TCPAddr, err error) {
	connect := d.dial
	if d.target.url.Scheme == "https" {
		connect = d.dialTLS
	}
	c, err := connect(ctx, "tcp", hostPort(d.target.url))
	if err != nil {
		return addr, err
	}
	defer c.Close()
	if tcp, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		addr = *tcp
	}
	if _, ok := c.(*tls.Conn); !ok {
		return addr, nil
	}
	// With TLS 1.3 a server refuses a client's certificate, or the lack of one,
	// only after the client has finished. One that refuses nothing waits for a
	// request.
	if err := c.SetReadDeadline(time.Now().Add(verdictTime)); err != nil {
		return addr, err
	}
	if _, err := c.Read(make([]byte, 1)); isTLSRefusal(err) {
		return addr, err
	}
	return addr, nil
}

// verdictTime is how long a server has to refuse the client's certificate.
const verdictTime = 500 * time.Millisecond

// remedy says what to do about an error of visit.
func remedy(t target, err error) string {
	var (
		dns       *net.DNSError
		plain     tls.RecordHeaderError
		authority x509.UnknownAuthorityError
		name      x509.HostnameError
		invalid   x509.CertificateInvalidError
		timeout   net.Error
	)
	switch {
	case errors.As(err, &dns) && dns.IsNotFound:
		return "there is no host of this name here: mend forward.url (from inside a container, the name of another one needs a common network)"
	case errors.As(err, &dns):
		return "the name server does not answer: check the network and the resolver"
	case errors.As(err, &plain):
		return "the port speaks no TLS: write http in forward.url, or switch TLS on in the application"
	case errors.As(err, &authority):
		return "name the authority that signed the application's certificate in forward.tls.ca_file"
	case errors.As(err, &name):
		return "use a host in forward.url that the application's certificate is for, or have one made for this host"
	case errors.As(err, &invalid):
		return "renew the application's certificate; check the clocks of both sides"
	case isTLSRefusal(err):
		return "the application wants a client certificate that it knows: set forward.tls.cert_file and key_file"
	case t.socket != "" && errors.Is(err, syscall.ENOENT):
		return "start the application, or mend the path of the socket in forward.url (in containers, both need the same volume)"
	case t.socket != "" && errors.Is(err, syscall.EACCES):
		return "let the user that runs inboxd read and write the socket, and enter its directory"
	case t.socket != "" && errors.Is(err, syscall.ECONNREFUSED):
		return "start the application: nobody listens on the socket, which an earlier run may have left behind"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "start the application, or mend the port in forward.url; in a container of its own the application must listen on 0.0.0.0, not on 127.0.0.1"
	case errors.As(err, &timeout) && timeout.Timeout():
		return "nothing answers at this address: check the host in forward.url, the network and firewalls"
	}
	return "check that the application runs and that forward.url leads to it"
}

func (r *report) files(o Options) {
	if o.TokenFile != "" {
		r.ok("forward.token_file", "%s holds a token", o.TokenFile)
	}
	if o.TLS != (TLSFiles{}) {
		r.ok("forward.tls", "the files can be read")
	}
}

func (r *report) health(ctx context.Context, f *Forwarder) {
	const subject = "forward.health_url"
	if f.health == nil {
		r.ok(subject, "not set: the application is taken to be ready whenever it takes connections")
		return
	}
	t, err := parseTarget(f.opts.HealthURL)
	if err != nil { // New has accepted it
		return
	}
	if t.String() == f.target.String() {
		r.warn(subject, "give the application a route of its own for health, which answers GET without doing anything",
			"is the route of the messages, which gets a GET each second in this way; not asked now")
		return
	}
	if err := f.health.get(ctx); err != nil {
		r.fail(subject, "let it answer GET with 2xx, without a redirect or a login, once the application can take messages: consuming starts only then",
			"%s: %v", t, err)
		return
	}
	r.ok(subject, "%s answers 2xx", t)
}

func isLocalhost(host string) bool {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	return host == "localhost" || strings.HasSuffix(host, ".localhost")
}

func isLoopbackName(host string) bool {
	ip := net.ParseIP(host)
	return isLocalhost(host) || ip != nil && ip.IsLoopback()
}
