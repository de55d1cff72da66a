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
	"sync"

	"github.com/inboxd/inboxd/internal/inbox"
)

const (
	maxImport     = 4 << 30  // bytes in one import
	maxImportLine = 64 << 20 // one message as JSON: 16 MiB of body, and room
	maxLineErrors = 100      // told in the answer
	moreTimeEvery = 64       // lines
	// importWriters is how many lines are stored at once: a store that collects
	// concurrent writes makes one of them.
	importWriters = 16
)

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

// importLines stores every line of r's body. A line that parse refuses is told
// and skipped; an error of write ends the import. fresh says that the line was
// not there before.
func importLines[T any](w http.ResponseWriter, r *http.Request, parse func([]byte) (T, error), write func(context.Context, T) (fresh bool, err error)) (Imported, error) {
	res := Imported{Errors: []LineError{}}
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	var mu sync.Mutex // guards res
	values := make(chan T)
	var writers sync.WaitGroup
	for range importWriters {
		writers.Go(func() {
			for v := range values {
				fresh, err := write(ctx, v)
				if err != nil {
					cancel(err) // the first one stays
					continue
				}
				mu.Lock()
				res.Lines++
				if fresh {
					res.Imported++
				} else {
					res.Already++
				}
				mu.Unlock()
			}
		})
	}
	err := eachLine(w, r, func(line int, b []byte) error {
		v, err := parse(b)
		if err != nil {
			mu.Lock()
			defer mu.Unlock()
			res.Lines++
			res.fail(line, err)
			return nil
		}
		select {
		case values <- v:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	close(values)
	writers.Wait()
	if cause := context.Cause(ctx); cause != nil && r.Context().Err() == nil {
		return res, cause
	}
	res.Done = err == nil
	return res, err
}

// importParked stores the lines of an export again. A message that is stored
// already (same consumer, ID and body) is not kept twice. `state=parked` parks
// deferred messages too, for a person to look at.
func (a *Admin) importParked(w http.ResponseWriter, r *http.Request) error {
	park := r.URL.Query().Get("state") == string(inbox.StateParked)
	consumers := map[string]bool{}
	for _, c := range a.Consumers() {
		consumers[c.Name] = true
	}
	parse := func(b []byte) (*inbox.ParkedMessage, error) { return parseExported(b, consumers) }
	res, err := importLines(w, r, parse, func(ctx context.Context, m *inbox.ParkedMessage) (bool, error) {
		if park {
			m.State = inbox.StateParked
		}
		return true, a.Parker.Park(ctx, m)
	})
	return a.answerImport(w, r, res, err, deed{action: actionImport, target: countOf(res.Imported, "message")})
}

func (a *Admin) answerImport(w http.ResponseWriter, r *http.Request, res Imported, err error, d deed) error {
	if res.Imported+res.Already > 0 {
		d.why, d.facts = whyOf(r, false), []any{"already", res.Already, "failed", res.Failed, "complete", err == nil}
		a.done(r, d)
	}
	if err != nil {
		return fmt.Errorf("after %s: %w", countOf(res.Imported+res.Already, "line"), err)
	}
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
