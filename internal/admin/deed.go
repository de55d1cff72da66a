package admin

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
)

// The actions of the audit table.
const (
	actionReplay        = "replay"
	actionDiscard       = "discard"
	actionReplayFilter  = "replay-by-filter"
	actionDiscardFilter = "discard-by-filter"
	actionExport        = "export"
	actionImport        = "import"
	actionForget        = "forget"
	actionRecord        = "record"
	actionImportIDs     = "import-ids"
	actionPause         = "pause"
	actionResume        = "resume"
	actionDrain         = "drain"
)

// deed is one verb that somebody has carried out.
type deed struct {
	action, consumer, target string

	why   string
	facts []any // for the log alone
}

// done writes a deed into audit table and log. The deed is done already: where
// the table cannot be written, the log is the trace that remains.
func (a *Admin) done(r *http.Request, d deed) {
	trace(r.Context(), a.Desk, a.Log, callerOf(r).String(), d)
}

func trace(ctx context.Context, desk inbox.Desk, log *slog.Logger, actor string, d deed) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	err := desk.Audit(ctx, inbox.AuditEntry{
		At: time.Now().UTC(), Actor: actor, Action: d.action,
		Consumer: d.consumer, Target: d.target, Reason: d.why,
	})
	log = log.With("action", d.action, "actor", actor, "consumer", d.consumer,
		"target", cut(d.target, 64), "why", d.why).With(d.facts...)
	if err != nil {
		log.Error("done on request, but the audit table does not say so", "err", err)
		return
	}
	log.Info("done on request")
}

// whyOf is the reason that a caller of the API gives. `reason` says the same,
// but not where messages are selected: there it selects them by what they were
// parked for. Only the query is read: a body may be an import.
func whyOf(r *http.Request, selects bool) string {
	q := r.URL.Query()
	s := q.Get("why")
	if s == "" && !selects {
		s = q.Get("reason")
	}
	return clean(s, 500)
}
