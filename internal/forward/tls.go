package forward

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"sync"
	"time"
)

// tlsFiles makes TLS configurations from files, read again when they change.
type tlsFiles struct {
	files TLSFiles

	mu    sync.Mutex
	stamp [3]fileStamp
	cfg   *tls.Config
}

type fileStamp struct {
	modified time.Time
	size     int64
}

func stampOf(path string) fileStamp {
	info, err := os.Stat(path) // follows symbolic links, as mounted secrets have them
	if err != nil {
		return fileStamp{}
	}
	return fileStamp{info.ModTime(), info.Size()}
}

// config returns the configuration for connections to host. Files that are in
// the middle of a change leave the former configuration in force.
func (t *tlsFiles) config(host string) (*tls.Config, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	stamp := [3]fileStamp{stampOf(t.files.CAFile), stampOf(t.files.CertFile), stampOf(t.files.KeyFile)}
	if t.cfg == nil || stamp != t.stamp {
		cfg, err := t.files.load()
		switch {
		case err == nil:
			t.cfg, t.stamp = cfg, stamp
		case t.cfg == nil:
			return nil, err
		}
	}
	cfg := t.cfg.Clone()
	cfg.ServerName = host
	return cfg, nil
}

func (f TLSFiles) load() (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
	if f.CAFile != "" {
		pem, err := os.ReadFile(f.CAFile)
		if err != nil {
			return nil, fmt.Errorf("reading ca_file: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("ca_file %s: no certificate in it", f.CAFile)
		}
	}
	if f.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(f.CertFile, f.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("reading the client certificate: %w", err)
		}
		cfg.Certificates = []tls.Certificate{cert}
	}
	return cfg, nil
}

// isTLSRefusal reports whether the other side broke TLS off with an alert that
// speaks of certificates or of the handshake. With TLS 1.3 a refused client
// certificate shows only when the answer is read; no handler saw the request.
func isTLSRefusal(err error) bool {
	var remote *net.OpError
	if !errors.As(err, &remote) || remote.Op != "remote error" {
		return false
	}
	for _, code := range refusals {
		// The type of the alert is not exported, but its text is the same.
		if remote.Err.Error() == code.Error() {
			return true
		}
	}
	return false
}

// refusals are alerts of RFC 8446, section 6.2: handshake_failure, the seven
// about certificates, and access_denied.
var refusals = []tls.AlertError{40, 42, 43, 44, 45, 46, 48, 49, 116}

func hostPort(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = "80"
		if u.Scheme == "https" {
			port = "443"
		}
	}
	return net.JoinHostPort(u.Hostname(), port)
}
