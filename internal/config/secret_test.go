package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
)

const canary = "CANARY"

// printed returns v as everything that prints would print it.
func printed(v any) map[string]string {
	out := map[string]string{}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%T", "% x", "%p", "%08v", "%-20s"} {
		out[verb] = fmt.Sprintf(verb, v)
	}
	out["Sprint"] = fmt.Sprint(v)
	out["error"] = fmt.Errorf("got %v", v).Error()
	if b, err := json.Marshal(v); err == nil {
		out["json"] = string(b)
	}
	if b, err := yaml.Marshal(v); err == nil {
		out["yaml"] = string(b)
	}
	var b bytes.Buffer
	slog.New(slog.NewTextHandler(&b, nil)).Info("x", slog.Any("v", v), slog.Any("group", slog.GroupValue(slog.Any("v", v))))
	slog.New(slog.NewJSONHandler(&b, nil)).Info("x", "v", v)
	out["slog"] = b.String()
	return out
}

func checkNoCanary(t *testing.T, what string, v any) {
	t.Helper()
	for how, text := range printed(v) {
		for _, form := range []string{canary, fmt.Sprintf("%x", canary), fmt.Sprintf("%X", canary), fmt.Sprintf("% x", canary), strings.Trim(fmt.Sprint([]byte(canary)), "[]")} {
			if strings.Contains(text, form) {
				t.Errorf("%s printed with %s shows the secret: %s", what, how, text)
			}
		}
	}
}

func TestNothingPrintsASecret(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(canary+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	text := fmt.Sprintf(`
broker:
  urls: ["amqp://app:CANARY@rabbit/v", "amqps://app:${PASSWORD}@rabbit:5671/", "amqp://app:CANARY@h/?auth=CANARY&heartbeat=10"]
  password_file: %[1]s
store:
  url: postgres://app:CANARY@db/x?sslmode=require&password=CANARY&sslpassword=CANARY
  password_file: %[1]s
consumers:
- name: a
  queue: q
  forward:
    url: "https://CANARY@h/m?access_token=CANARY"
    health_url: "https://user:CANARY@h/health?CANARY"
    token_file: %[1]s
  inbox: {url: "postgres://u:CANARY@db/y", password_file: %[1]s}
admin: {token_file: %[1]s}
`, file("secret"))
	c, err := Parse(strings.NewReader(text), env("PASSWORD", canary))
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Broker.URLs[1].Reveal(); got != "amqps://app:CANARY@rabbit:5671/" {
		t.Errorf("Reveal: got %q", got)
	}
	secret, err := ReadSecret(c.Broker.PasswordFile)
	if err != nil || secret.Reveal() != canary {
		t.Errorf("ReadSecret: got %q, %v, want %q", secret.Reveal(), err, canary)
	}
	type hidden struct {
		inner  Config
		secret Secret
		byName map[string]URL
	}
	for what, v := range map[string]any{
		"Config": c, "*Config": &c, "Broker": c.Broker, "[]URL": c.Broker.URLs, "URL": c.Store.URL, "*URL": &c.Store.URL,
		"Secret": secret, "*Secret": &secret, "dump": string(c.Redacted()), "warnings": c.Warnings(),
		"unexported": hidden{c, secret, map[string]URL{"x": c.Store.URL}}, "map": map[string]any{"u": c.Store.URL, "s": secret},
	} {
		checkNoCanary(t, what, v)
	}
	if !strings.Contains(string(c.Redacted()), "amqp://app:<redacted>@rabbit/v") {
		t.Errorf("the dump does not show what is harmless:\n%s", c.Redacted())
	}
}

func TestURLsShowWhatIsHarmless(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"":                                        "",
		"amqp://guest:guest@127.0.0.1:5672/":      "amqp://guest:<redacted>@127.0.0.1:5672/",
		"amqp://host/%2Fprod":                     "amqp://host/%2Fprod",
		"amqp://app@host":                         "amqp://app@host",
		"amqp://a%20b:x@host":                     "amqp://a%20b:<redacted>@host",
		"sqlite:inboxd.db":                        "sqlite:inboxd.db",
		"sqlite:/var/lib/inboxd/inboxd.db?key=x":  "sqlite:/var/lib/inboxd/inboxd.db?key=<redacted>",
		"postgres://u:p@h1:1,h2:2/db?sslmode=x&y": "postgres://u:<redacted>@h1:1,h2:2/db?sslmode=x&<redacted>",
		"http+unix:///run/app.sock:/messages":     "http+unix:///run/app.sock:/messages",
		"http://token@h/":                         "http://<redacted>@h/",
		"http://h/p?a=b&sslmode=&c=#f":            "http://h/p?a=<redacted>&sslmode=&c=#<redacted>",
		"host=db password=x":                      "<redacted>",
		"amqp:user:pass@host":                     "<redacted>",
		"amqp://user:12/34@host/":                 "<redacted>",
		"amqp://user:p@1/2@host/":                 "<redacted>",
		"amqp://user:pa?ss@host/":                 "<redacted>",
		"amqp://user:1#2@host/":                   "<redacted>",
		"amqp://user:%zz@host/":                   "<redacted>",
		"secret":                                  "<redacted>",
		"/secret":                                 "<redacted>",
	} {
		if got := NewURL(raw).String(); got != want {
			t.Errorf("%q: got %q, want %q", raw, got, want)
		}
	}
}

func TestSecretFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for text, want := range map[string]string{"x": "x", "x\n": "x", "x\r\n": "x", " x \n\n": " x ", "a\nb\n": "a\nb"} {
		path := filepath.Join(dir, "f")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := ReadSecret(path); err != nil || got.Reveal() != want {
			t.Errorf("%q: got %q, %v, want %q", text, got.Reveal(), err, want)
		}
	}
	for text, want := range map[string]string{"": "is empty", "\n": "is empty", strings.Repeat("x", maxSecret+1): "longer"} {
		path := filepath.Join(dir, "f")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadSecret(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.10q: got %v, want %q", text, err, want)
		}
	}
	if _, err := ReadSecret(filepath.Join(dir, "none")); err == nil {
		t.Error("a missing file: got no error")
	}
}
