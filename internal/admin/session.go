package admin

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"strings"
	"time"
)

const (
	cookieName    = "inboxd_session"
	sessionLength = 12 * time.Hour
)

// session is a person who has logged in at the page. It lives in a signed
// cookie; the daemon keeps nothing, and a restart ends all of them.
type session struct {
	Name    string    `json:"n"`
	Token   string    `json:"t"` // name of the token
	Hash    string    `json:"h"` // of the token: a token that leaves the file ends its sessions
	Expires time.Time `json:"e"`
}

func (s session) caller(r *http.Request) caller {
	return caller{name: s.Name, token: s.Token, addr: remoteHost(r), page: true}
}

// sign authenticates data for one use.
func (a *Admin) sign(use, data string) string {
	m := hmac.New(sha256.New, a.secret)
	m.Write([]byte(use + "\x00" + data))
	return base64.RawURLEncoding.EncodeToString(m.Sum(nil))
}

func (a *Admin) newCookie(r *http.Request, name string, t token) *http.Cookie {
	b, _ := json.Marshal(session{ // strings and a time: cannot fail
		Name: clean(name, 64), Token: t.name, Hash: hex.EncodeToString(t.hash[:]),
		Expires: time.Now().Add(sessionLength),
	})
	data := base64.RawURLEncoding.EncodeToString(b)
	return &http.Cookie{ //nolint:gosec // Secure would keep it from a plain listener on loopback
		Name: cookieName, Value: data + "." + a.sign("session", data), Path: "/",
		MaxAge: int(sessionLength.Seconds()), HttpOnly: true, Secure: r.TLS != nil,
		SameSite: http.SameSiteStrictMode,
	}
}

// session returns the session of r's cookie, where it is ours, has not expired,
// and its token is still in the token file.
func (a *Admin) session(r *http.Request) (session, bool) {
	c, err := r.Cookie(cookieName)
	if err != nil {
		return session{}, false
	}
	data, mac, _ := strings.Cut(c.Value, ".")
	if subtle.ConstantTimeCompare([]byte(mac), []byte(a.sign("session", data))) != 1 {
		return session{}, false
	}
	var s session
	b, err := base64.RawURLEncoding.DecodeString(data)
	if err != nil || json.Unmarshal(b, &s) != nil || time.Now().After(s.Expires) {
		return session{}, false
	}
	ts, err := readTokens(a.TokenFile)
	if err != nil {
		return session{}, false
	}
	for _, t := range ts {
		if hex.EncodeToString(t.hash[:]) == s.Hash {
			return s, true
		}
	}
	return session{}, false
}

// formToken is what every form of the page carries: a page of another origin
// cannot read it. It is bound to the session where there is one.
func (a *Admin) formToken(r *http.Request) string {
	bound := ""
	if c, err := r.Cookie(cookieName); err == nil && a.TokenFile != "" {
		bound = c.Value
	}
	return a.sign("form", bound)
}

func (a *Admin) checkFormToken(r *http.Request) error {
	if subtle.ConstantTimeCompare([]byte(r.PostFormValue("csrf")), []byte(a.formToken(r))) != 1 {
		return forbidden("this form is too old or was not made by this page; reload the page and try again")
	}
	return nil
}
