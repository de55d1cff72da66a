package admin

import (
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
)

const formType = "application/x-www-form-urlencoded"

var csrfField = regexp.MustCompile(`name="csrf" value="([^"]+)"`)

func (d *desk) formToken(t *testing.T, path string, header ...string) string {
	t.Helper()
	m := csrfField.FindStringSubmatch(d.want(t, 200, "GET", path, "", header...).body)
	if m == nil {
		t.Fatalf("%s: no form token", path)
	}
	return m[1]
}

func TestFormsNeedTheirToken(t *testing.T) {
	t.Parallel()
	d := open(t)
	id := d.park(t, 1)[0]
	before := d.store.Changes()
	for _, pattern := range d.routes {
		method, path, _ := strings.Cut(pattern, " ")
		if method != "POST" || strings.HasPrefix(path, "/api/") || path == "/drain" || path == "/login" {
			continue
		}
		for _, body := range []string{"", "csrf=", "csrf=wrong&consumer=billing&raw=x&all=true"} {
			if a := d.send(t, "POST", fillPath(path, id), body, "Content-Type", formType); a.status != 403 {
				t.Errorf("%s with %q: got %d, want 403", pattern, body, a.status)
			}
		}
	}
	if d.store.Changes() != before || len(d.paused) != 0 {
		t.Errorf("got %d changes, want none", d.store.Changes()-before)
	}
	token := d.formToken(t, "/parked/"+id+"/discard")
	a := d.want(t, 303, "POST", "/parked/"+id+"/discard", "why=test&csrf="+token, "Content-Type", formType, "Origin", d.url, "Sec-Fetch-Site", "same-origin")
	if got := a.header.Get("Location"); got != "/parked?done=discarded" || d.store.Count() != 0 {
		t.Errorf("got %q and %d messages, want the list and none", got, d.store.Count())
	}
}

func (d *desk) login(t *testing.T, token string) (answer, *http.Cookie) {
	t.Helper()
	a := d.send(t, "POST", "/login", url.Values{"name": {"ann"}, "token": {token}, "next": {"/audit"}}.Encode(), "Content-Type", formType)
	for _, c := range (&http.Response{Header: a.header}).Cookies() {
		return a, c
	}
	return a, nil
}

func TestPageNeedsALogin(t *testing.T) {
	t.Parallel()
	d := open(t, withToken(t, "ops secret\n"))
	for _, pattern := range d.routes {
		method, path, _ := strings.Cut(pattern, " ")
		if strings.HasPrefix(path, "/api/") || path == "/drain" || path == "/login" || strings.HasPrefix(path, "/static/") {
			continue
		}
		a := d.send(t, method, fillPath(path, "1"), "", "Cookie", cookieName+"=x.y")
		if a.status != 303 || !strings.HasPrefix(a.header.Get("Location"), "/login?next=") {
			t.Errorf("%s: got %d %q, want the login", pattern, a.status, a.header.Get("Location"))
		}
	}
	if a, c := d.login(t, "wrong"); a.status != 401 || c != nil {
		t.Errorf("with a wrong token: got %d and %v, want 401 and no cookie", a.status, c)
	}
	a, c := d.login(t, "secret")
	if a.status != 303 || a.header.Get("Location") != "/audit" || c == nil {
		t.Fatalf("got %d %q %v, want /audit with a cookie", a.status, a.header.Get("Location"), c)
	}
	if !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || strings.Contains(c.Value, "secret") {
		t.Errorf("got %v, want HttpOnly, SameSite=Strict and no token in it", c)
	}
	cookie := c.Name + "=" + c.Value
	d.want(t, 200, "GET", "/", "", "Cookie", cookie)
	// A session reads the API, but acts through forms alone.
	d.want(t, 200, "GET", "/api/status", "", "Cookie", cookie)
	d.want(t, 401, "POST", "/api/consumers/billing/pause", "", "Cookie", cookie)
	// A form token of another session is none of this one's.
	other := strings.Replace(cookie, ".", ".x", 1)
	token := d.formToken(t, "/", "Cookie", cookie)
	if a := d.send(t, "POST", "/consumers/billing/pause", "csrf="+token, "Content-Type", formType, "Cookie", other); a.status != 303 || len(d.paused) != 0 {
		t.Errorf("got %d and %v, want the login", a.status, d.paused)
	}
	d.want(t, 303, "POST", "/consumers/billing/pause", "csrf="+token, "Content-Type", formType, "Cookie", cookie)
	if got := d.lastDeed(t); got.Actor != "ann (page, ops, 127.0.0.1)" {
		t.Errorf("got %+v, want ann", got)
	}
	// A token that leaves the file takes its sessions with it.
	if err := os.WriteFile(d.TokenFile, []byte("ops another\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d.want(t, 303, "GET", "/", "", "Cookie", cookie)
}

func TestLoginLeadsNowhereElse(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"/parked?consumer=billing": "/parked?consumer=billing", "": "/", "https://evil.example": "/", "//evil.example": "/",
		`/\evil.example`: "/", "javascript:alert(1)": "/", "parked": "/", "/\r\nx": "/", "/\t/evil.example": "/",
	} {
		if got := localPath(in); got != want {
			t.Errorf("localPath(%q): got %q, want %q", in, got, want)
		}
	}
}

func TestPageEscapesEverything(t *testing.T) {
	t.Parallel()
	d := open(t, func(o *Options) {
		o.Consumers = func() []ConsumerStatus {
			cs := someConsumers()
			cs[0].Queue, cs[1].Breaker.Why, cs[1].Hindrances[0].Why = evilHTML, evilHTML, evilHTML
			return cs
		}
		o.Store = func() StoreStatus { return StoreStatus{Why: evilHTML} }
	})
	evil := parkedMessage(evilHTML, evilHTML)
	evil.Error, evil.Queue, evil.Exchange, evil.RoutingKey, evil.Answer = evilHTML, evilHTML, evilHTML, evilHTML, []byte(evilHTML)
	evil.Headers = inbox.Table{evilHTML: evilHTML}
	if err := d.store.Park(t.Context(), evil); err != nil {
		t.Fatal(err)
	}
	q := url.QueryEscape(evilHTML)
	d.want(t, 202, "POST", "/api/parked/replay?rate=1&all=true&why="+q, "", "X-Inboxd-Actor", evilHTML)
	run := d.jobs.list()[0].ID
	for _, path := range []string{
		"/", "/parked", "/parked?raw=" + q, "/parked?consumer=" + q, "/parked?reason=" + q, "/parked/" + evil.ID, "/parked/" + evil.ID + "?view=text",
		"/parked/" + evil.ID + "?view=hex", "/parked/" + evil.ID + "/discard", "/parked/" + q, "/parked/confirm?action=replay&raw=" + q, "/parked/confirm?action=" + q,
		"/runs", "/runs/" + run, "/runs/" + q, "/lookup?consumer=billing&raw=" + q, "/lookup?consumer=billing&id=" + q, "/lookup?consumer=" + q + "&raw=x",
		"/records/confirm?action=record&consumer=billing&id=" + q, "/audit", "/login?next=" + q, "/?done=" + q, "/" + q,
	} {
		a := d.send(t, "GET", path, "")
		if a.status >= 500 {
			t.Errorf("%s: got %d, want less than 500", path, a.status)
		}
		if strings.HasPrefix(a.header.Get("Content-Type"), "text/html") &&
			(strings.Contains(a.body, "<img") || strings.Contains(a.body, "<script>") || strings.Contains(a.body, "/textarea></pre>")) {
			t.Errorf("%s: got it unescaped:\n%s", path, a.body)
		}
	}
	a := d.want(t, 200, "GET", "/parked/"+evil.ID+"/body", "")
	if a.body != evilHTML || a.header.Get("Content-Type") != "application/octet-stream" || !strings.HasPrefix(a.header.Get("Content-Disposition"), "attachment") {
		t.Errorf("got %q %v, want the body as a download", a.body, a.header)
	}
}

func TestBodiesAreMadeReadable(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ body, view, wantView, wantText string }{
		{`{"a":1.50,"b":12345678901234567890}`, "", "json", "{\n  \"a\": 1.50,\n  \"b\": 12345678901234567890\n}"},
		{"no json", "json", "json", "no json"},
		{"a\tb\x1b[31m\u202e", "", "text", "a\tb␛[31m⟨U+202E⟩"},
		{"\xff\x00", "", "hex", "00000000  ff 00                                             |..|\n"},
		{"\xff", "text", "text", "\ufffd"},
	} {
		got := showBody([]byte(c.body), c.view)
		if got.View != c.wantView || got.Text != c.wantText {
			t.Errorf("%q as %q: got %s %q, want %s %q", c.body, c.view, got.View, got.Text, c.wantView, c.wantText)
		}
	}
	if got := showBody(make([]byte, 1<<20), ""); !got.Cut || len(got.Text) > 200<<10 {
		t.Errorf("got %d bytes of a large body, want its beginning", len(got.Text))
	}
}

func TestChartsTellInWordsToo(t *testing.T) {
	t.Parallel()
	d := open(t)
	busyDay(d)
	a := d.want(t, 200, "GET", "/", "")
	if !regexp.MustCompile(`aria-label="Messages a second over the last 10 min; processed: now \d`).MatchString(a.body) {
		t.Errorf("got %s, want the chart in words", a.body)
	}
	if n := len(d.samples.of("billing")); n != sampleCount {
		t.Errorf("got %d samples, want the ring full at %d", n, sampleCount)
	}
}

func TestPageTellsOfAProbation(t *testing.T) {
	t.Parallel()
	d := open(t, func(o *Options) {
		o.Consumers = func() []ConsumerStatus {
			cs := someConsumers()
			cs[0].Probation = &ProbationStatus{Since: time.Now(), Left: 17}
			return cs
		}
	})
	if body := string(d.want(t, 200, "GET", "/", "").body); !strings.Contains(body, "until 17 more are settled") {
		t.Errorf("the page does not tell how long messages go one at a time:\n%s", body)
	}
}
