package forward

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
)

func newTLSForwarder(t testing.TB, h http.HandlerFunc) *Forwarder {
	t.Helper()
	s := httptest.NewTLSServer(h)
	t.Cleanup(s.Close)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	writePEM(t, ca, s.Certificate().Raw)
	return newForwarder(t, s.URL, func(o *Options) { o.TLS.CAFile = ca })
}

func writePEM(t testing.TB, path string, der []byte) {
	t.Helper()
	b := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}
