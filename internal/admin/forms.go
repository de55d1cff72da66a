package admin

import (
	"net/http"

	"github.com/inboxd/inboxd/internal/inbox"
)

func (a *Admin) formReplay(w http.ResponseWriter, r *http.Request) error {
	if err := a.replayParked(r, r.PathValue("id"), formWhy(r)); err != nil {
		return err
	}
	return seeOther(w, r, localPath(r.PostFormValue("back")), "replayed")
}

func (a *Admin) formDiscard(w http.ResponseWriter, r *http.Request) error {
	if err := a.discardParked(r, r.PathValue("id"), formWhy(r)); err != nil {
		return err
	}
	return seeOther(w, r, "/parked", "discarded")
}

func (a *Admin) formRun(action string) pageFunc {
	return func(w http.ResponseWriter, r *http.Request) error {
		q := filterOf(r.PostForm)
		q.Set("all", r.PostFormValue("all"))
		q.Set("rate", r.PostFormValue("rate"))
		j, err := a.newJob(r, action, q, formWhy(r))
		if err != nil {
			return err
		}
		return seeOther(w, r, "/runs/"+j.ID, "")
	}
}

func (a *Admin) formStop(w http.ResponseWriter, r *http.Request) error {
	j, err := a.haltJob(r, r.PathValue("id"), formWhy(r))
	if err != nil {
		return err
	}
	return seeOther(w, r, "/runs/"+j.ID, "")
}

func (a *Admin) formRunOn(w http.ResponseWriter, r *http.Request) error {
	j, err := a.restartJob(r, r.PathValue("id"), formWhy(r))
	if err != nil {
		return err
	}
	return seeOther(w, r, "/runs/"+j.ID, "")
}

func (a *Admin) formRecord(w http.ResponseWriter, r *http.Request) error {
	key, err := a.pageKey(r.PostForm)
	if err != nil {
		return err
	}
	fresh, err := a.record(r, key, inbox.Fingerprint{}, formWhy(r))
	if err != nil {
		return err
	}
	done := "known"
	if fresh {
		done = "recorded"
	}
	return seeOther(w, r, lookupURL(key), done)
}

func (a *Admin) formForget(w http.ResponseWriter, r *http.Request) error {
	key, err := a.pageKey(r.PostForm)
	if err != nil {
		return err
	}
	if err := a.forget(r, key, formWhy(r)); err != nil {
		return err
	}
	return seeOther(w, r, lookupURL(key), "forgotten")
}

func (a *Admin) formPause(w http.ResponseWriter, r *http.Request) error {
	if err := a.pauseConsumer(r, r.PathValue("name"), formWhy(r)); err != nil {
		return err
	}
	return seeOther(w, r, "/", "paused")
}

func (a *Admin) formResume(w http.ResponseWriter, r *http.Request) error {
	if err := a.resumeConsumer(r, r.PathValue("name"), formWhy(r)); err != nil {
		return err
	}
	return seeOther(w, r, "/", "resumed")
}

func formWhy(r *http.Request) string { return clean(r.PostFormValue("why"), 500) }
