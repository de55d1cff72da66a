package forward

import (
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
)

// tokenEvery is how old a token may be: rotated ones take effect within it.
const tokenEvery = time.Second

// authorization gives the value of the Authorization header, from a file that
// may change or a constant.
type authorization struct {
	file string

	mu     sync.Mutex
	value  string
	readAt time.Time
	lost   bool
}

// header returns the value, "" for none. A file that cannot be read any more
// leaves the last value in force; lost is true when that has just begun.
func (a *authorization) header() (value string, lost error) {
	if a.file == "" {
		return a.value, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if time.Since(a.readAt) < tokenEvery {
		return a.value, nil
	}
	err := a.read()
	if err != nil && !a.lost {
		lost = err
	}
	a.lost = err != nil
	return a.value, lost
}

func (a *authorization) read() error {
	a.readAt = time.Now()
	b, err := os.ReadFile(a.file)
	if err != nil {
		return fmt.Errorf("reading token_file: %w", err)
	}
	token := strings.TrimSpace(string(b))
	if token == "" || !isPlainValue(token) || strings.Contains(token, " ") {
		return fmt.Errorf("token_file %s: must hold one token of visible ASCII", a.file)
	}
	a.value = "Bearer " + token
	return nil
}

// newAuthorization reads the token, or takes the user information of the URL.
func newAuthorization(file string, t target) (*authorization, error) {
	a := &authorization{file: file}
	switch {
	case t.user != nil && file != "":
		return nil, errors.New("token_file: the URL has user information already")
	case t.user != nil:
		password, _ := t.user.Password()
		a.value = "Basic " + base64.StdEncoding.EncodeToString([]byte(t.user.Username()+":"+password))
	case file != "":
		if err := a.read(); err != nil {
			return nil, err
		}
	}
	return a, nil
}
