package verify

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

// target is the handler. Requests are written by hand, one connection each, so
// that a connection can be cut at a chosen moment and many requests can be let
// go at the same instant.
type target struct {
	url      *url.URL // as sent: for a unix socket the host is localhost
	network  string
	addr     string
	tls      *tls.Config
	header   http.Header
	consumer string
	quoted   bool
	timeout  time.Duration
}

// newTarget reads http://, https:// and http+unix:///SOCKET:/PATH.
func newTarget(raw, caFile string) (*target, error) {
	if rest, ok := strings.CutPrefix(raw, "http+unix://"); ok {
		socket, path, _ := strings.Cut(rest, ":")
		u, err := url.Parse("http://localhost" + path)
		if err != nil || socket == "" {
			return nil, fmt.Errorf("%q: want http+unix:///SOCKET:/PATH", raw)
		}
		return &target{url: u, network: "unix", addr: socket}, nil
	}
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("%q: want an http://, https:// or http+unix:// URL", raw)
	}
	t := &target{url: u, network: "tcp"}
	port := u.Port()
	if u.Scheme == "https" {
		t.tls = &tls.Config{ServerName: u.Hostname()}
		if port == "" {
			port = "443"
		}
	} else if port == "" {
		port = "80"
	}
	t.addr = net.JoinHostPort(u.Hostname(), port)
	if caFile != "" && t.tls != nil {
		pem, err := os.ReadFile(caFile)
		if err != nil {
			return nil, err
		}
		t.tls.RootCAs = x509.NewCertPool()
		if !t.tls.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s: no certificate in it", caFile)
		}
	}
	return t, nil
}

// answer is what came of one request.
type answer struct {
	status int // 0: none
	body   string
	err    error
	took   time.Duration
}

func (a answer) ok() bool { return a.status/100 == 2 }

// refused reports whether inboxd would park the message at once.
func (a answer) refused() bool {
	switch a.status {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge,
		http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity:
		return true
	}
	return false
}

func (a answer) String() string {
	if a.status == 0 {
		return "no answer"
	}
	return strconv.Itoa(a.status)
}

// shot is a request of which all but the last byte is written.
type shot struct {
	conn  net.Conn
	req   *http.Request
	last  []byte
	start time.Time
}

// aim connects and writes the request for the given attempt but for its last
// byte: the handler cannot begin.
func (t *target) aim(ctx context.Context, m message, attempt int) (*shot, error) {
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.url.String(), bytes.NewReader(m.body))
	if err != nil {
		return nil, err
	}
	req.Header = t.header.Clone()
	key := m.id
	if t.quoted {
		key = `"` + key + `"`
	}
	req.Header.Set("Idempotency-Key", key)
	req.Header.Set("Inbox-Consumer", t.consumer)
	req.Header.Set("Inbox-Attempt", strconv.Itoa(attempt))
	req.Header.Set("Inbox-Redelivered", strconv.FormatBool(attempt > 1))
	req.Header.Set("Inbox-Fingerprint", m.fingerprint())
	req.Close = true
	var raw bytes.Buffer
	if err := req.Write(&raw); err != nil {
		return nil, err
	}
	conn, err := t.dial(ctx)
	if err != nil {
		return nil, err
	}
	b := raw.Bytes()
	if _, err := conn.Write(b[:len(b)-1]); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return &shot{conn: conn, req: req, last: b[len(b)-1:]}, nil
}

func (t *target) dial(ctx context.Context) (net.Conn, error) {
	if t.tls != nil {
		return (&tls.Dialer{Config: t.tls}).DialContext(ctx, t.network, t.addr)
	}
	return new(net.Dialer).DialContext(ctx, t.network, t.addr)
}

// fire writes the last byte: from now on the handler may be at work.
func (s *shot) fire() error {
	s.start = time.Now()
	_, err := s.conn.Write(s.last)
	return err
}

// cut closes the connection, whatever is on its way.
func (s *shot) cut() { _ = s.conn.Close() }

// read waits for the answer.
func (s *shot) read(timeout time.Duration) answer {
	defer s.cut()
	a := answer{}
	_ = s.conn.SetReadDeadline(time.Now().Add(timeout))
	r := bufio.NewReader(s.conn)
	for {
		resp, err := http.ReadResponse(r, s.req)
		if err != nil {
			a.err, a.took = err, time.Since(s.start)
			return a
		}
		if resp.StatusCode/100 == 1 && resp.StatusCode != http.StatusSwitchingProtocols {
			continue
		}
		body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
		_ = resp.Body.Close()
		if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
			a.err = err
		}
		a.status, a.body, a.took = resp.StatusCode, string(body[:min(len(body), 300)]), time.Since(s.start)
		return a
	}
}

// send sends one request and waits for its answer.
func (t *target) send(ctx context.Context, m message, attempt int) answer {
	s, err := t.aim(ctx, m, attempt)
	if err != nil {
		return answer{err: err}
	}
	return s.shoot(t.timeout)
}

// shoot fires and waits for the answer. A handler that does not care for the
// body may have answered, and closed the connection, before the last byte.
func (s *shot) shoot(timeout time.Duration) answer {
	fireErr := s.fire()
	a := s.read(timeout)
	if a.status == 0 && fireErr != nil {
		a.err = fireErr
	}
	return a
}

// reachable reports whether somebody listens.
func (t *target) reachable(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	conn, err := t.dial(ctx)
	if err != nil {
		return err
	}
	return conn.Close()
}
