package admin

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
)

const (
	maxImport     = 4 << 30  // bytes in one import
	maxImportLine = 64 << 20 // one message as JSON: 16 MiB of body, and room
	exportPage    = 200      // messages listed at once
	maxLineErrors = 100      // told in the answer
	moreTimeEvery = 64       // lines
	linesJSON     = "application/x-ndjson"
)

// exportParked streams whole messages, one JSON object a line. An export that
// cannot be completed ends the connection, so that it never looks complete.
func (a *Admin) exportParked(w http.ResponseWriter, r *http.Request) error {
	f, err := parseFilter(r.URL.Query())
	if err != nil {
		return err
	}
	page, err := a.Desk.ListParked(r.Context(), f, r.URL.Query().Get("after"), exportPage)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", linesJSON)
	w.Header().Set("Content-Disposition", `attachment; filename="parked.jsonl"`)
	n, err := a.exportPages(w, r, f, page)
	a.done(r, deed{action: actionExport, consumer: f.Consumer, target: describeFilter(f), why: whyOf(r, true),
		facts: []any{"messages", n, "complete", err == nil}})
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	return nil
}

func (a *Admin) exportPages(w http.ResponseWriter, r *http.Request, f inbox.ParkedFilter, page []*inbox.ParkedMessage) (n int, err error) {
	enc := json.NewEncoder(w)
	for len(page) > 0 {
		for _, m := range page {
			moreTime(w)
			whole, err := a.Desk.GetParked(r.Context(), m.ID)
			if errors.Is(err, inbox.ErrNotFound) {
				continue // it has gone since it was listed
			}
			if err != nil {
				return n, err
			}
			if err := enc.Encode(wholeOf(whole)); err != nil {
				return n, err
			}
			n++
		}
		if len(page) < exportPage {
			break
		}
		if page, err = a.Desk.ListParked(r.Context(), f, page[len(page)-1].ID, exportPage); err != nil {
			return n, err
		}
	}
	return n, nil
}

// Imported is the answer of an import. Lines that failed changed nothing.
type Imported struct {
	Lines    int         `json:"lines"`
	Imported int         `json:"imported"`
	Already  int         `json:"already"` // records alone: they were there
	Failed   int         `json:"failed"`
	Errors   []LineError `json:"errors"` // the first hundred
	Done     bool        `json:"done"`
}

// LineError says what is wrong with one line of an import.
type LineError struct {
	Line  int    `json:"line"`
	Error string `json:"error"`
}

func (i *Imported) fail(line int, err error) {
	i.Failed++
	if len(i.Errors) < maxLineErrors {
		i.Errors = append(i.Errors, LineError{line, err.Error()})
	}
}

// importParked stores the lines of an export again. A message that is stored
// already (same consumer, ID and body) is not kept twice. `state=parked` parks
// deferred messages too, for a person to look at.
func (a *Admin) importParked(w http.ResponseWriter, r *http.Request) error {
	res := Imported{Errors: []LineError{}}
	park := r.URL.Query().Get("state") == string(inbox.StateParked)
	consumers := map[string]bool{}
	for _, c := range a.Consumers() {
		consumers[c.Name] = true
	}
	err := eachLine(w, r, func(line int, b []byte) error {
		res.Lines++
		m, err := parseExported(b, consumers)
		if err != nil {
			res.fail(line, err)
			return nil
		}
		if park {
			m.State = inbox.StateParked
		}
		if err := a.Parker.Park(r.Context(), m); err != nil {
			return fmt.Errorf("line %d, after %d imported: %w", line, res.Imported, err)
		}
		res.Imported++
		return nil
	})
	if res.Imported > 0 {
		a.done(r, deed{action: actionImport, target: strconv.Itoa(res.Imported) + " messages", why: whyOf(r, false),
			facts: []any{"failed", res.Failed}})
	}
	if err != nil {
		return err
	}
	res.Done = true
	return writeJSON(w, http.StatusOK, res)
}

func parseExported(b []byte, consumers map[string]bool) (*inbox.ParkedMessage, error) {
	var p ParkedWhole
	if err := json.Unmarshal(b, &p); err != nil {
		return nil, fmt.Errorf("not a line of an export: %w", err)
	}
	if !consumers[p.Consumer] {
		return nil, fmt.Errorf("consumer: %q is none of this daemon's", cut(p.Consumer, 64))
	}
	return p.message()
}

// eachLine calls do with every line that is not empty. Lines end with LF or
// CR LF.
func eachLine(w http.ResponseWriter, r *http.Request, do func(line int, b []byte) error) error {
	sc := bufio.NewScanner(http.MaxBytesReader(w, r.Body, maxImport))
	sc.Buffer(make([]byte, 0, 64<<10), maxImportLine)
	for line := 1; sc.Scan(); line++ {
		if line%moreTimeEvery == 1 {
			moreTime(w)
		}
		b := bytes.TrimSuffix(sc.Bytes(), []byte{'\r'})
		if len(b) == 0 {
			continue
		}
		if err := do(line, b); err != nil {
			return err
		}
	}
	switch err := sc.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return badRequest("a line is longer than %d bytes", maxImportLine)
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, context.Canceled):
		return badRequest("the import broke off")
	default:
		return err
	}
}

// describeFilter writes f for people: in the audit table and on the page.
func describeFilter(f inbox.ParkedFilter) string {
	q := filterQuery(f)
	var words []string
	for _, name := range []string{"consumer", "reason", "state", "message_id", "before"} {
		if q.Has(name) {
			words = append(words, name+"="+q.Get(name))
		}
	}
	if len(words) == 0 {
		return "all"
	}
	return strings.Join(words, " ")
}

// filterQuery is the inverse of parseFilter.
func filterQuery(f inbox.ParkedFilter) url.Values {
	q := url.Values{}
	set := func(name, value string) {
		if value != "" {
			q.Set(name, value)
		}
	}
	set("consumer", f.Consumer)
	set("reason", f.Reason.String())
	set("state", string(f.State))
	set("message_id", string(f.MessageID))
	if !f.Before.IsZero() {
		set("before", f.Before.UTC().Format(time.RFC3339Nano))
	}
	return q
}
