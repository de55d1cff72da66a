package admin

import (
	"context"
	"net/http"
)

// apiFunc answers one route; an error it returns becomes a Problem. It returns
// one only before it has begun to answer.
type apiFunc func(w http.ResponseWriter, r *http.Request) error

type callerKey struct{}

func callerOf(r *http.Request) caller {
	c, _ := r.Context().Value(callerKey{}).(caller)
	return c
}

func withCaller(r *http.Request, c caller) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), callerKey{}, c))
}

// buildHandler joins guard and routes. GET routes read; the methods say it, and
// a test walks them.
func (a *Admin) buildHandler() http.Handler {
	mux := http.NewServeMux()
	api := func(pattern string, f apiFunc) {
		a.routes = append(a.routes, pattern)
		mux.Handle(pattern, a.apiHandler(f))
	}
	api("GET /api/status", a.getStatus)

	api("GET /api/parked", a.listParked)
	api("GET /api/parked/export", a.exportParked)
	api("POST /api/parked/import", a.importParked)
	api("GET /api/parked/{id}", a.getParked)
	api("POST /api/parked/{id}/replay", a.replayOne)
	api("POST /api/parked/{id}/discard", a.discardOne)
	api("POST /api/parked/replay", a.startJob(actionReplay))
	api("POST /api/parked/discard", a.startJob(actionDiscard))

	api("GET /api/jobs", a.listJobs)
	api("GET /api/jobs/{id}", a.getJob)
	api("DELETE /api/jobs/{id}", a.stopJob)
	api("POST /api/jobs/{id}/resume", a.resumeJob)

	// The message ID is one encoded path element, or ?id= and ?raw=.
	api("GET /api/records/{consumer}/{message_id}", a.getRecord)
	api("PUT /api/records/{consumer}/{message_id}", a.putRecord)
	api("DELETE /api/records/{consumer}/{message_id}", a.deleteRecord)
	api("GET /api/records/{consumer}", a.getRecord)
	api("PUT /api/records/{consumer}", a.putRecord)
	api("DELETE /api/records/{consumer}", a.deleteRecord)
	api("POST /api/records/{consumer}/import", a.importRecords)
	api("GET /api/messages/{consumer}/{message_id}", a.getMessage)
	api("GET /api/messages/{consumer}", a.getMessage)

	api("POST /api/consumers/{name}/pause", a.pause)
	api("POST /api/consumers/{name}/resume", a.resume)
	api("POST /drain", a.drain)
	api("GET /api/audit", a.listAudit)

	a.pageRoutes(mux)
	return a.guard(unknownRoutes(mux))
}

func (a *Admin) apiHandler(f apiFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := a.authorizeAPI(r)
		if err != nil {
			a.refuse(w, r, problemOf(err))
			return
		}
		if err := f(w, withCaller(r, c)); err != nil {
			p := problemOf(err)
			if p.Status >= http.StatusInternalServerError {
				a.Log.Warn("admin request failed", "method", r.Method, "path", cut(r.URL.Path, 64), "err", err)
			}
			writeProblem(w, p)
		}
	})
}

// unknownRoutes answers what no route answers as a Problem too.
func unknownRoutes(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h, pattern := mux.Handler(r)
		if pattern != "" {
			mux.ServeHTTP(w, r)
			return
		}
		probe := statusProbe{header: http.Header{}}
		h.ServeHTTP(&probe, r)
		if probe.status != http.StatusMethodNotAllowed {
			writeProblem(w, notFound("there is no %s", cut(r.URL.Path, 64)))
			return
		}
		allow := probe.header.Get("Allow")
		w.Header().Set("Allow", allow)
		writeProblem(w, problem(ProblemMethod, http.StatusMethodNotAllowed, "Wrong method", "use %s", allow))
	})
}

// statusProbe learns what the mux would answer.
type statusProbe struct {
	header http.Header
	status int
}

func (p *statusProbe) Header() http.Header         { return p.header }
func (p *statusProbe) Write(b []byte) (int, error) { return len(b), nil }
func (p *statusProbe) WriteHeader(status int)      { p.status = status }
