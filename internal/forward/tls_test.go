package forward

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
)

func newTLSForwarder(t testing.TB, h http.HandlerFunc) *Forwarder {
	t.Helper()
	s := httptest.NewTLSServer(h)
	t.Cleanup(s.Close)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	writePEM(t, ca, "CERTIFICATE", s.Certificate().Raw)
	return newForwarder(t, s.URL, func(o *Options) { o.TLS.CAFile = ca })
}

func writePEM(t testing.TB, path, kind string, der []byte) {
	t.Helper()
	b := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// authority is a certificate authority of a test.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{}
	der, key := a.issue(t, &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: rand.Text()}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign,
	})
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	a.cert, a.key = cert, key
	return a
}

func (a *authority) issue(t *testing.T, c *x509.Certificate) ([]byte, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	c.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	parent, parentKey := a.cert, a.key
	if parent == nil {
		parent, parentKey = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, parentKey)
	if err != nil {
		t.Fatal(err)
	}
	return der, key
}

// files writes a certificate for the usage, its key, and the authority's.
func (a *authority) files(t *testing.T, dir string, usage x509.ExtKeyUsage) TLSFiles {
	t.Helper()
	der, key := a.issue(t, &x509.Certificate{SerialNumber: big.NewInt(2), ExtKeyUsage: []x509.ExtKeyUsage{usage}})
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	f := TLSFiles{CAFile: dir + "/ca.pem", CertFile: dir + "/cert.pem", KeyFile: dir + "/key.pem"}
	writePEM(t, f.CAFile, "CERTIFICATE", a.cert.Raw)
	writePEM(t, f.CertFile, "CERTIFICATE", der)
	writePEM(t, f.KeyFile, "EC PRIVATE KEY", keyDER)
	return f
}

func newMutualServer(t *testing.T, a *authority) *httptest.Server {
	t.Helper()
	f := a.files(t, t.TempDir(), x509.ExtKeyUsageServerAuth)
	cert, err := tls.LoadX509KeyPair(f.CertFile, f.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

func TestClientCertificatesAreReadAgain(t *testing.T) {
	t.Parallel()
	good, bad := newAuthority(t), newAuthority(t)
	s := newMutualServer(t, good)
	dir := t.TempDir()
	files := good.files(t, dir, x509.ExtKeyUsageClientAuth)
	f := newForwarder(t, s.URL, func(o *Options) { o.TLS = files })
	try := func(what string, want inbox.Verdict) {
		t.Helper()
		f.sender.close() // a new connection for each
		d := newDelivery("m")
		a := f.Forward(t.Context(), d)
		if a.Verdict != want {
			t.Errorf("%s: got %s (%v), want %s", what, a.Verdict, a.Err, want)
		}
	}
	try("right certificates", inbox.Done)

	other := bad.files(t, t.TempDir(), x509.ExtKeyUsageClientAuth)
	copyFile(t, other.CertFile, files.CertFile)
	copyFile(t, other.KeyFile, files.KeyFile)
	try("a client certificate of a stranger", inbox.Unreachable)

	good.files(t, dir, x509.ExtKeyUsageClientAuth)
	try("renewed certificates", inbox.Done)

	copyFile(t, other.CAFile, files.CAFile)
	try("another authority", inbox.Unreachable)

	copyFile(t, files.KeyFile, files.CertFile)
	copyFile(t, files.KeyFile, files.CAFile)
	try("files in the middle of a change", inbox.Unreachable) // as before

	good.files(t, dir, x509.ExtKeyUsageClientAuth)
	try("renewed certificates again", inbox.Done)
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, append(b, '\n'), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestPlainTargetBehindTLS(t *testing.T) {
	t.Parallel()
	s := newServer(t, func(http.ResponseWriter, *http.Request) {})
	f := newForwarder(t, strings.Replace(s.URL, "http:", "https:", 1), nil)
	if a := f.Forward(t.Context(), newDelivery("m")); a.Verdict != inbox.Unreachable {
		t.Errorf("TLS to a plain server: got %s (%v), want unreachable", a.Verdict, a.Err)
	}
}
