package admin

import (
	"context"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
)

func (a *Admin) pause(w http.ResponseWriter, r *http.Request) error {
	if err := a.pauseConsumer(r, r.PathValue("name"), whyOf(r, false)); err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, Done{ID: r.PathValue("name"), Result: "paused"})
}

func (a *Admin) resume(w http.ResponseWriter, r *http.Request) error {
	if err := a.resumeConsumer(r, r.PathValue("name"), whyOf(r, false)); err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, Done{ID: r.PathValue("name"), Result: "resumed"})
}

func (a *Admin) pauseConsumer(r *http.Request, name, why string) error {
	if !a.hasConsumer(name) {
		return noSuchConsumer(name)
	}
	text := "paused by " + callerOf(r).String()
	if why != "" {
		text += ": " + why
	}
	if err := a.Pause(r.Context(), name, text); err != nil {
		return err
	}
	a.done(r, deed{action: actionPause, consumer: name, target: name, why: why})
	return nil
}

func (a *Admin) resumeConsumer(r *http.Request, name, why string) error {
	if !a.hasConsumer(name) {
		return noSuchConsumer(name)
	}
	if err := a.Resume(r.Context(), name); err != nil {
		return err
	}
	a.done(r, deed{action: actionResume, consumer: name, target: name, why: why})
	return nil
}

// Drained is the answer of POST /drain.
type Drained struct {
	Drained bool    `json:"drained"`
	Seconds float64 `json:"seconds"`
}

// drain stops consuming and answers when nothing is in flight any more. A
// client that goes away, or a limit that passes, ends the waiting alone.
func (a *Admin) drain(w http.ResponseWriter, r *http.Request) error {
	limit := a.DrainLimit
	if s := r.URL.Query().Get("timeout"); s != "" {
		d, err := time.ParseDuration(s)
		if err != nil || d <= 0 {
			return badRequest("timeout: %q is not a duration like 20s", s)
		}
		limit = d
	}
	begin := time.Now()
	until := begin.Add(limit + 10*time.Second)
	_ = http.NewResponseController(w).SetWriteDeadline(until)
	_ = http.NewResponseController(w).SetReadDeadline(until)
	// Beside the drain: a store that does not answer must not hold it up, and
	// after it the store may be closing.
	var audit sync.WaitGroup
	audit.Go(func() { a.done(r, deed{action: actionDrain, target: "daemon", why: whyOf(r, false)}) })
	defer audit.Wait()
	ctx, cancel := context.WithTimeout(r.Context(), limit)
	defer cancel()
	if err := a.Drain(ctx); err != nil {
		if ctx.Err() != nil {
			return problem(ProblemTimeout, http.StatusGatewayTimeout, "Not drained yet",
				"requests were still in flight after %s; draining goes on", limit)
		}
		return err
	}
	return writeJSON(w, http.StatusOK, Drained{Drained: true, Seconds: time.Since(begin).Seconds()})
}

// AuditEntry is one deed of a person.
type AuditEntry struct {
	At       time.Time `json:"at"`
	Actor    string    `json:"actor"`
	Action   string    `json:"action"`
	Consumer string    `json:"consumer,omitempty"`
	Target   string    `json:"target"`
	Reason   string    `json:"reason,omitempty"`
}

// AuditList is the answer of GET /api/audit, newest first.
type AuditList struct {
	Audit []AuditEntry `json:"audit"`
}

func (a *Admin) listAudit(w http.ResponseWriter, r *http.Request) error {
	limit, err := parseLimit(r.URL.Query())
	if err != nil {
		return err
	}
	es, err := a.Desk.ListAudit(r.Context(), limit)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, AuditList{Audit: auditOf(es)})
}

func auditOf(es []inbox.AuditEntry) []AuditEntry {
	out := []AuditEntry{}
	for _, e := range es {
		out = append(out, AuditEntry(e))
	}
	return out
}

func countOf(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}
