package admin

import (
	"mime"
	"net/http"
	"net/url"
	"strconv"

	"github.com/inboxd/inboxd/internal/inbox"
)

// overview is the first view.
type overview struct {
	Status    Status
	Consumers []consumerView
	Stopped   []string // consumers that do not consume
}

type consumerView struct {
	ConsumerStatus
	Why              []inbox.Closure
	Paused           bool
	Parked, Deferred int64
	Charts           []chart
}

func (a *Admin) viewOverview(w http.ResponseWriter, r *http.Request) error {
	s := a.status(r.Context())
	o := overview{Status: s}
	parked := int64(0)
	for _, c := range s.Consumers {
		v := consumerView{ConsumerStatus: c, Why: notConsuming(c), Charts: charts(a.samples.of(c.Name))}
		for _, h := range c.Hindrances {
			v.Paused = v.Paused || h.Hindrance == inbox.HindrancePaused
		}
		for _, p := range s.Parked {
			switch {
			case p.Consumer != c.Name:
			case p.State == inbox.StateParked:
				v.Parked += p.Count
			default:
				v.Deferred += p.Count
			}
		}
		if !c.Consuming {
			o.Stopped = append(o.Stopped, c.Name)
		}
		parked += v.Parked
		o.Consumers = append(o.Consumers, v)
	}
	if s.ParkedError != "" {
		parked = -1
	}
	return a.show(w, r, http.StatusOK, "overview", view{Title: "Overview", Active: "overview", Live: true, Parked: parked, Data: o})
}

// parkedView is the list of stored messages.
type parkedView struct {
	List      ParkedList
	Query     url.Values
	Filtered  bool
	Consumers []string
	Reasons   []inbox.ParkReason
	States    []string
	Ages      [][2]string // a duration, and how it is called
	Counts    []ParkedCount
	Here      string // the address of this list
	Next      string // of the next page, "" on the last
	// Replay, Discard and Export are where the verbs on the whole selection are.
	Replay, Discard, Export string
}

// filterOf keeps of a query what selects messages, without empty fields.
func filterOf(q url.Values) url.Values {
	out := url.Values{}
	for _, name := range []string{"consumer", "reason", "state", "older", "before", "raw", "message_id"} {
		if s := q.Get(name); s != "" {
			out.Set(name, s)
		}
	}
	return out
}

func (a *Admin) viewParked(w http.ResponseWriter, r *http.Request) error {
	q := filterOf(r.URL.Query())
	v := parkedView{
		Query: q, Filtered: len(q) > 0, Reasons: inbox.ParkReasons, Here: "/parked?" + q.Encode(),
		States: []string{string(inbox.StateParked), string(inbox.StateDeferred)},
		Ages:   [][2]string{{"1h", "an hour"}, {"24h", "a day"}, {"168h", "a week"}, {"720h", "30 days"}},
	}
	page := filterOf(q)
	page.Set("after", r.URL.Query().Get("after"))
	page.Set("limit", "50")
	list, err := a.parkedPage(r.Context(), page)
	if err != nil {
		return err
	}
	v.List = list
	if list.Next != "" {
		page.Del("limit")
		page.Set("after", list.Next)
		v.Next = "/parked?" + page.Encode()
	}
	for _, c := range a.Consumers() {
		v.Consumers = append(v.Consumers, c.Name)
	}
	with := func(action string) string {
		p := filterOf(q)
		p.Set("action", action)
		return "/parked/confirm?" + p.Encode()
	}
	v.Replay, v.Discard, v.Export = with(actionReplay), with(actionDiscard), "/api/parked/export?"+q.Encode()
	parked := int64(-1)
	if counts, err := a.Desk.CountParked(r.Context()); err == nil {
		parked = parkedCount(counts)
		for _, c := range counts {
			v.Counts = append(v.Counts, ParkedCount{Consumer: c.Consumer, State: c.State, Reason: c.Reason.String(), Count: c.Count, Oldest: c.Oldest})
		}
	}
	return a.show(w, r, http.StatusOK, "parked", view{Title: "Parked messages", Active: "parked", Parked: parked, Data: v})
}

// messageView is one stored message.
type messageView struct {
	M          *inbox.ParkedMessage
	Views      []string
	Advice     string
	Properties [][2]string
	Headers    string
	Body       bodyView
	Answer     bodyView
}

func (a *Admin) viewMessage(w http.ResponseWriter, r *http.Request) error {
	m, err := a.parkedMessage(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	whole := wholeOf(m)
	v := messageView{
		M: m, Views: []string{"text", "json", "hex"}, Advice: advice(m), Properties: propertiesOf(m),
		Headers: readable(whole.Headers), Body: showBody(m.Body, r.URL.Query().Get("view")), Answer: showBody(m.Answer, "text"),
	}
	if whole.HeadersError != "" {
		v.Headers = whole.HeadersError
	}
	return a.show(w, r, http.StatusOK, "message", view{Title: "Stored message", Active: "parked", Parked: -1, Data: v})
}

func (a *Admin) downloadBody(w http.ResponseWriter, r *http.Request) error {
	m, err := a.parkedMessage(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	moreTime(w)
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": m.ID + ".bin"}))
	_, _ = w.Write(m.Body)
	return nil
}

func (a *Admin) viewRuns(w http.ResponseWriter, r *http.Request) error {
	return a.show(w, r, http.StatusOK, "runs", view{Title: "Runs", Active: "runs", Live: true, Parked: -1, Data: a.jobs.list()})
}

func (a *Admin) viewRun(w http.ResponseWriter, r *http.Request) error {
	j, err := a.jobs.find(r.PathValue("id"))
	if err != nil {
		return err
	}
	s := j.snapshot()
	return a.show(w, r, http.StatusOK, "run", view{Title: "Run", Active: "runs", Live: s.State == JobRunning, Parked: -1, Data: s})
}

// lookupView answers: what happened to this message?
type lookupView struct {
	Consumers    []string
	Consumer, ID string
	Canonical    bool // ID is in canonical form
	Ledger       *MessageLedger
	Error        string
}

func (a *Admin) viewLookup(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	v := lookupView{Consumer: q.Get("consumer"), ID: q.Get("raw")}
	if v.ID == "" && q.Get("id") != "" {
		v.ID, v.Canonical = q.Get("id"), true
	}
	for _, c := range a.Consumers() {
		v.Consumers = append(v.Consumers, c.Name)
	}
	status := http.StatusOK
	if v.ID != "" {
		key, err := a.pageKey(q)
		if err == nil {
			v.Ledger, err = a.ledgerOf(r.Context(), key)
		}
		if err != nil {
			p := problemOf(err)
			v.Error, status = p.Detail, p.Status
		}
	}
	return a.show(w, r, status, "lookup", view{Title: "Look up a message", Active: "lookup", Parked: -1, Data: v})
}

// pageKey reads a key from a form or an address of the page: consumer, and id
// in canonical form or raw. The form has both fields; one of them is empty.
func (a *Admin) pageKey(q url.Values) (inbox.Key, error) {
	if !a.hasConsumer(q.Get("consumer")) {
		return inbox.Key{}, noSuchConsumer(q.Get("consumer"))
	}
	key := inbox.Key{Consumer: q.Get("consumer")}
	if raw := q.Get("raw"); raw != "" {
		key.ID = inbox.Canonical([]byte(raw))
		return key, nil
	}
	var err error
	key.ID, err = messageIDOf(q.Get("id"), nil)
	return key, err
}

func lookupURL(key inbox.Key) string {
	return "/lookup?" + url.Values{"consumer": {key.Consumer}, "id": {string(key.ID)}}.Encode()
}

func (a *Admin) viewAudit(w http.ResponseWriter, r *http.Request) error {
	es, err := a.Desk.ListAudit(r.Context(), 200)
	if err != nil {
		return err
	}
	return a.show(w, r, http.StatusOK, "audit", view{Title: "Audit", Active: "audit", Parked: -1, Data: auditOf(es)})
}

func statusText(code int) string {
	if code == 0 {
		return "none"
	}
	if t := http.StatusText(code); t != "" {
		return strconv.Itoa(code) + " " + t
	}
	return strconv.Itoa(code)
}
