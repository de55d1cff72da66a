package consumer

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// selfSigned returns a certificate for 127.0.0.1 and the pool that trusts it.
func selfSigned(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "broker"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(72 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

func TestTLSIsBelowTheFilterAndReloadedAtEachDial(t *testing.T) {
	t.Parallel()
	old, oldPool := selfSigned(t)
	rotated, newPool := selfSigned(t)
	var current atomic.Pointer[tls.Certificate]
	current.Store(&old)
	f := serveFake(t, func(l net.Listener) net.Listener {
		return tls.NewListener(l, &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return current.Load(), nil }})
	})
	var pool atomic.Pointer[x509.CertPool]
	pool.Store(oldPool)
	url := strings.Replace(f.url(), "amqp:", "amqps:", 1)
	r := startRig(t, rigOptions{url: url, tune: func(o *Options) {
		quick(o)
		o.Broker.Credentials = func() ([]string, *tls.Config, error) {
			return []string{url}, &tls.Config{RootCAs: pool.Load()}, nil
		}
	}})
	c := <-f.consumed
	header := contentHeader(table("big", 'L', i64(1)), "m", 1)
	if err := c.deliver(header, "x"); err != nil {
		t.Fatal(err)
	}
	eventually(t, 5*time.Second, "the repaired message is handled", func() bool { _, n := r.calls(); return n == 1 })

	current.Store(&rotated)
	c.Close()
	eventually(t, 5*time.Second, "the new certificate is refused", func() bool { return strings.Contains(r.c.Status().LastError, "certificate") })
	pool.Store(newPool) // the CA file was renewed too
	r.consuming(5 * time.Second)
	<-f.consumed
}

func TestExamineWarnsOfACertificateThatExpiresSoon(t *testing.T) {
	t.Parallel()
	cert, pool := selfSigned(t)
	f := serveFake(t, func(l net.Listener) net.Listener {
		return tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{cert}})
	})
	url := strings.Replace(f.url(), "amqp:", "amqps:", 1)
	got := examine(t, url, "orders", func(o *Options) {
		o.Broker.Credentials = func() ([]string, *tls.Config, error) { return []string{url}, &tls.Config{RootCAs: pool}, nil }
	})
	if !strings.Contains(got, "warn: broker: the certificate of broker expires on") {
		t.Errorf("findings lack the warning:\n%s", got)
	}
}

func TestURLThatCannotBeParsedIsNeverQuoted(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"amqp://u:canary@host:port/", "amqp://u:can ary@h/", "http://u:canary@h/", "amqps://u:canary@127.0.0.1:1/?certfile=/x", "amqp://u:canary@127.0.0.1:1/?auth_mechanism=canary-mechanism"} {
		d := dialer{broker: Broker{Credentials: URLs(url)}.withDefaults()}
		_, err := d.dial(t.Context())
		if err == nil || strings.Contains(err.Error(), "canary@") || strings.Contains(err.Error(), "u:can") {
			t.Errorf("dial = %v, want an error without the URL", err)
		}
	}
}
