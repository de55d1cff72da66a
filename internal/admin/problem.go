package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/inboxd/inboxd/internal/inbox"
)

// Problem is an error as RFC 9457 writes it (application/problem+json). Type is
// stable: clients branch on it.
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
}

// The problem types.
const (
	ProblemBadRequest   = "urn:inboxd:problem:bad-request"
	ProblemUnauthorized = "urn:inboxd:problem:unauthorized"
	ProblemForbidden    = "urn:inboxd:problem:forbidden"
	ProblemNotFound     = "urn:inboxd:problem:not-found"
	ProblemMethod       = "urn:inboxd:problem:method-not-allowed"
	ProblemConflict     = "urn:inboxd:problem:conflict"
	ProblemTooLarge     = "urn:inboxd:problem:too-large"
	ProblemUnavailable  = "urn:inboxd:problem:unavailable"
	ProblemTimeout      = "urn:inboxd:problem:timeout"
)

func (p *Problem) Error() string {
	if p.Detail == "" {
		return p.Title
	}
	return p.Title + ": " + p.Detail
}

func problem(typ string, status int, title, detail string, args ...any) *Problem {
	return &Problem{Type: typ, Title: title, Status: status, Detail: fmt.Sprintf(detail, args...)}
}

func badRequest(detail string, args ...any) *Problem {
	return problem(ProblemBadRequest, http.StatusBadRequest, "The request cannot be understood", detail, args...)
}

func forbidden(detail string, args ...any) *Problem {
	return problem(ProblemForbidden, http.StatusForbidden, "Not allowed", detail, args...)
}

func notFound(detail string, args ...any) *Problem {
	return problem(ProblemNotFound, http.StatusNotFound, "Not found", detail, args...)
}

func conflict(detail string, args ...any) *Problem {
	return problem(ProblemConflict, http.StatusConflict, "Not possible now", detail, args...)
}

// problemOf is the only place where an error becomes a status code.
func problemOf(err error) *Problem {
	var p *Problem
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &p):
		return p
	case errors.Is(err, inbox.ErrNotFound):
		return notFound("%v", err)
	case errors.As(err, &tooLarge):
		return problem(ProblemTooLarge, http.StatusRequestEntityTooLarge,
			"The request is too large", "at most %d bytes", tooLarge.Limit)
	case errors.Is(err, context.DeadlineExceeded):
		return problem(ProblemTimeout, http.StatusGatewayTimeout, "It took too long", "%v", err)
	default:
		return problem(ProblemUnavailable, http.StatusServiceUnavailable,
			"The store did not do it", "%v", err)
	}
}

func writeProblem(w http.ResponseWriter, p *Problem) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // the client is gone: nobody to tell
}

func writeJSON(w http.ResponseWriter, status int, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encoding the answer: %w", err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n'))
	return nil
}

// Is makes a Problem that came over the wire recognisable.
func (p *Problem) Is(target error) bool {
	return target == inbox.ErrNotFound && p.Type == ProblemNotFound
}
