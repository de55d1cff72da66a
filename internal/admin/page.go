package admin

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"html/template"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
)

//go:embed templates static
var files embed.FS

// templates are the page's views, each joined with the layout.
var templates = func() map[string]*template.Template {
	layout := template.Must(template.New("layout.html").Funcs(pageFuncs).ParseFS(files, "templates/layout.html"))
	views := map[string]*template.Template{}
	for _, name := range []string{"overview", "parked", "message", "confirm", "run", "runs", "lookup", "audit", "login", "problem"} {
		t := template.Must(layout.Clone())
		views[name] = template.Must(t.ParseFS(files, "templates/"+name+".html"))
	}
	return views
}()

// assets are the files that the page loads; the hash in their address changes
// with them.
var assets = func() map[string]string {
	m := map[string]string{}
	for _, name := range []string{"style.css", "page.js", "icon.svg"} {
		b, err := files.ReadFile("static/" + name)
		if err != nil {
			panic(err) // the build is broken
		}
		sum := sha256.Sum256(b)
		m[name] = "/static/" + name + "?v=" + hex.EncodeToString(sum[:6])
	}
	return m
}()

// view is what every template gets.
type view struct {
	Title  string
	Active string // the entry of the navigation
	Live   bool   // the page renews itself
	Notice string
	Token  string // of forms
	// Login is whether there are tokens; Who is logged in.
	Login, LoggedIn bool
	Who             string
	Version         string
	Life            Life
	Parked          int64 // for the navigation; -1 where unknown
	Now             time.Time
	Data            any
}

type pageFunc func(w http.ResponseWriter, r *http.Request) error

func (a *Admin) pageRoutes(mux *http.ServeMux) {
	page := func(pattern string, f pageFunc) {
		a.routes = append(a.routes, pattern)
		mux.Handle(pattern, a.pageHandler(f))
	}
	page("GET /{$}", a.viewOverview)
	page("GET /parked", a.viewParked)
	page("GET /parked/confirm", a.viewConfirmFilter)
	page("GET /parked/{id}", a.viewMessage)
	page("GET /parked/{id}/body", a.downloadBody)
	page("GET /parked/{id}/discard", a.viewConfirmDiscard)
	page("GET /runs", a.viewRuns)
	page("GET /runs/{id}", a.viewRun)
	page("GET /lookup", a.viewLookup)
	page("GET /records/confirm", a.viewConfirmRecord)
	page("GET /audit", a.viewAudit)

	page("POST /parked/{id}/replay", a.formReplay)
	page("POST /parked/{id}/discard", a.formDiscard)
	page("POST /parked/replay", a.formRun(actionReplay))
	page("POST /parked/discard", a.formRun(actionDiscard))
	page("POST /runs/{id}/stop", a.formStop)
	page("POST /runs/{id}/resume", a.formRunOn)
	page("POST /records/record", a.formRecord)
	page("POST /records/forget", a.formForget)
	page("POST /consumers/{name}/pause", a.formPause)
	page("POST /consumers/{name}/resume", a.formResume)
	page("POST /logout", a.formLogout)

	open := func(pattern string, f pageFunc) {
		a.routes = append(a.routes, pattern)
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if err := f(w, withCaller(r, caller{addr: remoteHost(r), page: true})); err != nil {
				a.showProblem(w, r, err)
			}
		})
	}
	open("GET /login", a.viewLogin)
	open("POST /login", a.formLogin)
	open("GET /static/{file}", serveAsset)
}

// pageHandler lets people in: with a session where there are tokens. A form is
// carried out only with the token that the page put into it.
func (a *Admin) pageHandler(f pageFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := caller{addr: remoteHost(r), page: true}
		if a.TokenFile != "" {
			s, ok := a.session(r)
			if !ok {
				next := "/"
				if r.Method == http.MethodGet {
					next = r.URL.RequestURI()
				}
				http.Redirect(w, r, "/login?next="+url.QueryEscape(next), http.StatusSeeOther)
				return
			}
			c = s.caller(r)
		}
		r = withCaller(r, c)
		err := a.checkForm(r)
		if err == nil {
			err = f(w, r)
		}
		if err != nil {
			a.showProblem(w, r, err)
		}
	})
}

func (a *Admin) checkForm(r *http.Request) error {
	if r.Method != http.MethodPost {
		return nil
	}
	if err := r.ParseForm(); err != nil {
		return problemOrBadForm(err)
	}
	return a.checkFormToken(r)
}

func problemOrBadForm(err error) error {
	if p := problemOf(err); p.Type == ProblemTooLarge {
		return p
	}
	return badRequest("this is no form: %v", err)
}

func (a *Admin) show(w http.ResponseWriter, r *http.Request, status int, name string, v view) error {
	v.Token, v.Version, v.Life, v.Now = a.formToken(r), a.Version, a.Life(), time.Now().UTC()
	v.Login = a.TokenFile != ""
	if v.Login {
		_, v.LoggedIn = a.session(r)
	}
	if c := callerOf(r); c.name != "" || c.token != "" {
		v.Who = c.name
		if v.Who == "" {
			v.Who = c.token
		}
	}
	if v.Notice == "" {
		v.Notice = notices[r.URL.Query().Get("done")]
	}
	// Rendered whole before the first byte: a failure is an error, not half a page.
	var b bytes.Buffer
	if err := templates[name].Execute(&b, v); err != nil {
		a.Log.Error("a view of the page cannot be rendered", "view", name, "err", err)
		http.Error(w, "the page cannot be rendered; the daemon's log says why", http.StatusInternalServerError)
		return nil
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes())
	return nil
}

// notices are what a page says after a form, by a word in its address: nothing
// from an address is ever shown as the daemon's own words.
var notices = map[string]string{
	"replayed":  "The message is due now. It leaves this list when it has been processed, and comes back when it fails.",
	"discarded": "The message is discarded.",
	"recorded":  "The message is recorded as processed.",
	"known":     "The message was recorded already.",
	"forgotten": "The record is gone: the message will be processed when it comes again.",
	"paused":    "The consumer is paused. It stays so across restarts until it is resumed.",
	"resumed":   "The consumer is resumed.",
	"loggedout": "You are logged out.",
}

func (a *Admin) showProblem(w http.ResponseWriter, r *http.Request, err error) {
	p := problemOf(err)
	if p.Status >= http.StatusInternalServerError {
		a.Log.Warn("admin request failed", "method", r.Method, "path", cut(r.URL.Path, 64), "err", err)
	}
	_ = a.show(w, r, p.Status, "problem", view{Title: p.Title, Data: p})
}

func seeOther(w http.ResponseWriter, r *http.Request, to, done string) error {
	if done != "" {
		sep := "?"
		if strings.Contains(to, "?") {
			sep = "&"
		}
		to += sep + "done=" + done
	}
	http.Redirect(w, r, to, http.StatusSeeOther) //nolint:gosec // to is a path of ours, or went through localPath
	return nil
}

func serveAsset(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("file")
	if _, ok := assets[name]; !ok {
		return notFound("there is no %s", cut(r.URL.Path, 64))
	}
	b, err := files.ReadFile("static/" + name)
	if err != nil {
		return err
	}
	types := map[string]string{".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
	w.Header().Set("Content-Type", types[path.Ext(name)])
	w.Header().Set("Cache-Control", "max-age=86400")
	_, _ = w.Write(b) //nolint:gosec // one of three embedded files
	return nil
}

func (a *Admin) viewLogin(w http.ResponseWriter, r *http.Request) error {
	if a.TokenFile == "" {
		return seeOther(w, r, "/", "")
	}
	return a.show(w, r, http.StatusOK, "login", view{Title: "Log in", Data: map[string]string{"Next": localPath(r.URL.Query().Get("next"))}})
}

func (a *Admin) formLogin(w http.ResponseWriter, r *http.Request) error {
	if a.TokenFile == "" {
		return seeOther(w, r, "/", "")
	}
	if err := r.ParseForm(); err != nil {
		return problemOrBadForm(err)
	}
	next := localPath(r.PostFormValue("next"))
	t, err := a.checkToken(strings.TrimSpace(r.PostFormValue("token")))
	if err != nil {
		p := problemOf(err)
		if n := a.refusal.pass(time.Now()); n > 0 {
			a.Log.Warn("admin request refused", "remote", r.RemoteAddr, "path", "/login", "reason", p.Detail, "since_last_line", n)
		}
		return a.show(w, r, p.Status, "login", view{Title: "Log in", Data: map[string]string{"Next": next, "Error": p.Detail}})
	}
	http.SetCookie(w, a.newCookie(r, r.PostFormValue("name"), t))
	return seeOther(w, r, next, "")
}

func (a *Admin) formLogout(w http.ResponseWriter, r *http.Request) error {
	c := http.Cookie{Name: cookieName, Path: "/", MaxAge: -1, HttpOnly: true, Secure: r.TLS != nil, SameSite: http.SameSiteStrictMode} //nolint:gosec // Secure as the cookie that it deletes
	http.SetCookie(w, &c)
	return seeOther(w, r, "/login", "loggedout")
}

// localPath returns s where it is a path of this page, and otherwise "/".
func localPath(s string) string {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "" || u.Host != "" || u.User != nil || !strings.HasPrefix(s, "/") ||
		strings.HasPrefix(s, "//") || strings.ContainsAny(s, "\\\r\n\t") {
		return "/"
	}
	return s
}

// parkedCount is the number in the navigation.
func parkedCount(counts []inbox.ParkedCount) (n int64) {
	for _, c := range counts {
		if c.State == inbox.StateParked {
			n += c.Count
		}
	}
	return n
}
