package forward

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
)

// wantFinding fails unless there is a finding of that level about subject with
// the texts in its detail and its remedy.
func wantFinding(t *testing.T, got []inbox.Finding, level, subject, detail, remedy string) {
	t.Helper()
	for _, f := range got {
		if f.Level == level && f.Subject == subject && strings.Contains(f.Detail, detail) && strings.Contains(f.Remedy, remedy) {
			return
		}
	}
	t.Errorf("got %+v, want %s: %s: …%s… (…%s…)", got, level, subject, detail, remedy)
}

func wantNone(t *testing.T, got []inbox.Finding, level string) {
	t.Helper()
	for _, f := range got {
		if f.Level == level {
			t.Errorf("got %+v, want nothing of level %s", f, level)
		}
		if (f.Remedy == "") != (f.Level == inbox.LevelOK) {
			t.Errorf("got %+v, want a remedy unless all is well", f)
		}
	}
}

func TestExaminationOfAGoodHandler(t *testing.T) {
	t.Parallel()
	var requests atomic.Int64
	s := newServer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/health" || r.Method != http.MethodGet {
			requests.Add(1)
		}
	})
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("secret-token\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got := Examine(t.Context(), Options{
		ConsumerName: "c", URL: s.URL + "/messages", HealthURL: s.URL + "/health", TokenFile: token, ContentType: "application/json",
	})
	wantNone(t, got, inbox.LevelFail)
	wantNone(t, got, inbox.LevelWarn)
	wantFinding(t, got, inbox.LevelOK, "forward.url", "takes connections", "")
	wantFinding(t, got, inbox.LevelOK, "forward.health_url", "answers 2xx", "")
	wantFinding(t, got, inbox.LevelOK, "forward.token_file", token, "")
	for _, f := range got {
		if strings.Contains(f.Detail, "secret") || f.Subject == "forward.content_type" {
			t.Errorf("got %+v, want neither the token nor a word about a content type that is set", f)
		}
	}
	if n := requests.Load(); n != 0 {
		t.Errorf("got %d requests at other routes than the health URL, want none", n)
	}
}

func TestExaminationReportsEveryProblemOfTheOptions(t *testing.T) {
	t.Parallel()
	got := Examine(t.Context(), Options{
		ConsumerName: "", URL: "ftp://user:hidden@127.0.0.1/", HealthURL: "nonsense", IdempotencyKey: "upper",
		TokenFile: "/does/not/exist", TLS: TLSFiles{CAFile: "/no/ca.pem", CertFile: "/no/cert.pem"},
	})
	for _, word := range []string{"consumer name", "url:", "health_url:", "idempotency_key", "token_file", "ca.pem", "cert_file and key_file"} {
		wantFinding(t, got, inbox.LevelFail, "forward", word, "forward:")
	}
	for _, f := range got {
		if strings.Contains(f.Detail, "hidden") {
			t.Errorf("got %q, want no credentials", f.Detail)
		}
	}
}

func TestExaminationNamesTheRemedyForATargetThatIsNotThere(t *testing.T) {
	t.Parallel()
	closed := newServer(t, func(http.ResponseWriter, *http.Request) {})
	closed.Close()
	dir := t.TempDir()
	left := filepath.Join(dir, "left.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: left, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	plain := newServer(t, func(http.ResponseWriter, *http.Request) {})
	secure := newQuietTLSServer(t, nil)
	elsewhere := strings.Replace(secure.URL, "127.0.0.1", "localhost", 1)
	ca := filepath.Join(dir, "ca.pem")
	writePEM(t, ca, "CERTIFICATE", secure.Certificate().Raw)
	picky := newQuietTLSServer(t, &tls.Config{ClientAuth: tls.RequireAnyClientCert})

	for _, c := range []struct{ name, url, ca, detail, remedy string }{
		{"refused", closed.URL, "", "refused", "start the application"},
		{"no socket", "http+unix://" + dir + "/none.sock:/m", "", "no such file", "path of the socket"},
		{"socket left behind", "http+unix://" + left + ":/m", "", "refused", "nobody listens on the socket"},
		{"no such name", "http://no-such-host.invalid/m", "", "no-such-host.invalid", "name"},
		{"plain port", strings.Replace(plain.URL, "http:", "https:", 1), "", "TLS", "write http in forward.url"},
		{"unknown authority", secure.URL, "", "unknown authority", "forward.tls.ca_file"},
		{"other name", elsewhere, ca, "localhost", "certificate is for"},
		{"wants a client certificate", picky.URL, caOf(t, picky), "certificate required", "cert_file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got := Examine(t.Context(), Options{ConsumerName: "c", URL: c.url, TLS: TLSFiles{CAFile: c.ca}})
			wantFinding(t, got, inbox.LevelFail, "forward.url", c.detail, c.remedy)
			wantFinding(t, got, inbox.LevelOK, "forward.content_type", "application/octet-stream", "")
		})
	}
}

func TestExaminationFollowsTLS(t *testing.T) {
	t.Parallel()
	s := newQuietTLSServer(t, nil)
	got := Examine(t.Context(), Options{ConsumerName: "c", URL: s.URL, TLS: TLSFiles{CAFile: caOf(t, s)}})
	wantNone(t, got, inbox.LevelFail)
	wantFinding(t, got, inbox.LevelOK, "forward.url", "takes connections", "")
	wantFinding(t, got, inbox.LevelOK, "forward.tls", "can be read", "")
}

func TestExaminationOfTheHealthURL(t *testing.T) {
	t.Parallel()
	s := newServer(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/down":
			w.WriteHeader(http.StatusServiceUnavailable)
		case "/messages":
			t.Errorf("got %s at the route of the messages, want nothing", r.Method)
		}
	})
	got := Examine(t.Context(), Options{ConsumerName: "c", URL: s.URL + "/messages", HealthURL: s.URL + "/down"})
	wantFinding(t, got, inbox.LevelFail, "forward.health_url", "answers 503", "2xx")
	got = Examine(t.Context(), Options{ConsumerName: "c", URL: s.URL + "/messages", HealthURL: s.URL + "/messages"})
	wantFinding(t, got, inbox.LevelWarn, "forward.health_url", "route of the messages", "route of its own")
	got = Examine(t.Context(), Options{ConsumerName: "c", URL: s.URL + "/messages"})
	wantNone(t, got, inbox.LevelWarn)
	wantFinding(t, got, inbox.LevelOK, "forward.health_url", "not set", "")
}

func TestExaminationWarnsOfAddresses(t *testing.T) {
	t.Parallel()
	s := newServer(t, func(http.ResponseWriter, *http.Request) {})
	got := Examine(t.Context(), Options{ConsumerName: "c", URL: strings.Replace(s.URL, "127.0.0.1", "localhost", 1)})
	wantFinding(t, got, inbox.LevelWarn, "forward.url", "::1", "127.0.0.1")
	// 192.0.2.0/24 is reserved for documentation: nobody is there.
	got = Examine(t.Context(), Options{ConsumerName: "c", URL: "http://192.0.2.1:9/m", Timeout: 50 * time.Millisecond})
	wantFinding(t, got, inbox.LevelWarn, "forward.url", "in the clear", "https")
	wantFinding(t, got, inbox.LevelFail, "forward.url", "cannot be reached", "in forward.url")
	got = Examine(t.Context(), Options{ConsumerName: "c", URL: "https://192.0.2.1:9/m", Timeout: 50 * time.Millisecond})
	wantNone(t, got, inbox.LevelWarn)
}

func newQuietTLSServer(t *testing.T, cfg *tls.Config) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	s.TLS = cfg
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

func caOf(t *testing.T, s *httptest.Server) string {
	t.Helper()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	writePEM(t, ca, "CERTIFICATE", s.Certificate().Raw)
	return ca
}

func TestRemedyForAnExpiredCertificate(t *testing.T) {
	t.Parallel()
	err := &tls.CertificateVerificationError{Err: x509.CertificateInvalidError{Reason: x509.Expired}}
	if got := remedy(target{}, err); !strings.Contains(got, "renew") {
		t.Errorf("got %q, want to renew it", got)
	}
}
