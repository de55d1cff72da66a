package admin

import (
	"context"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"time"

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

// confirmation asks before a verb that is hard to undo, and for its reason.
type confirmation struct {
	Heading, Text, Button string
	Danger                bool
	Target                string // where the form goes
	Back                  string
	Fields                [][2]string // shown
	Hidden                url.Values
	Rate                  int // asked for where not 0
}

func (a *Admin) confirm(w http.ResponseWriter, r *http.Request, c confirmation) error {
	return a.show(w, r, http.StatusOK, "confirm", view{Title: c.Heading, Active: "parked", Parked: -1, Data: c})
}

func (a *Admin) viewConfirmFilter(w http.ResponseWriter, r *http.Request) error {
	q := filterOf(r.URL.Query())
	f, err := parseFilter(q)
	if err != nil {
		return err
	}
	action := r.URL.Query().Get("action")
	if action != actionReplay && action != actionDiscard {
		return badRequest("action: %q is neither replay nor discard", cut(action, 20))
	}
	// What is confirmed is what is there now, not what comes meanwhile.
	if f.Before.IsZero() {
		f.Before = time.Now().UTC().Truncate(time.Second).Add(time.Second)
	}
	if action == actionReplay && f.State == "" {
		f.State = inbox.StateParked
	}
	n, more, err := a.countUpTo(r.Context(), f, 10_000)
	if err != nil {
		return err
	}
	count := countOf(n, "message")
	if more {
		count = "more than " + count
	}
	hidden := filterQuery(f)
	hidden.Set("all", "true")
	c := confirmation{
		Target: "/parked/" + action, Back: "/parked?" + q.Encode(), Hidden: hidden, Rate: defaultRate, Danger: action == actionDiscard,
		Fields: [][2]string{{"Messages", count}, {"Selected by", describeFilter(f)}},
	}
	if action == actionDiscard {
		c.Heading, c.Button = "Discard "+count+"?", "Discard "+count
		c.Text = "They are deleted for good. Export them first if you may need them."
	} else {
		c.Heading, c.Button = "Replay "+count+"?", "Replay "+count
		c.Text = "Each goes the same way as any message again, with the same Idempotency-Key and a fresh set of attempts. What is recorded already is not forwarded again."
	}
	return a.confirm(w, r, c)
}

// countUpTo counts what f selects, and stops at a limit.
func (a *Admin) countUpTo(ctx context.Context, f inbox.ParkedFilter, limit int) (n int, more bool, err error) {
	after := ""
	for {
		ms, err := a.Desk.ListParked(ctx, f, after, maxLimit)
		if err != nil {
			return n, false, err
		}
		n += len(ms)
		if len(ms) < maxLimit {
			return n, false, nil
		}
		if n >= limit {
			return n, true, nil
		}
		after = ms[len(ms)-1].ID
	}
}

func (a *Admin) viewConfirmDiscard(w http.ResponseWriter, r *http.Request) error {
	m, err := a.parkedMessage(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	here := "/parked/" + url.PathEscape(m.ID)
	return a.confirm(w, r, confirmation{
		Heading: "Discard this message?", Button: "Discard it", Danger: true, Target: here + "/discard", Back: here,
		Text: "It is deleted for good. Its ID is not recorded: if it is published again, it is processed.",
		Fields: [][2]string{
			{"Message ID", string(m.MessageID)}, {"Consumer", m.Consumer}, {"Reason", m.Reason.String()},
			{"Body", fmt.Sprintf("%d bytes", len(m.Body))},
		},
	})
}

func (a *Admin) viewConfirmRecord(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	key, err := a.pageKey(q)
	if err != nil {
		return err
	}
	c := confirmation{
		Back: lookupURL(key), Hidden: url.Values{"consumer": {key.Consumer}, "id": {string(key.ID)}},
		Fields: [][2]string{{"Consumer", key.Consumer}, {"Message ID", string(key.ID)}},
	}
	switch q.Get("action") {
	case actionForget:
		c.Heading, c.Button, c.Danger, c.Target = "Forget this record?", "Forget it", true, "/records/forget"
		c.Text = "When the message comes again, it is forwarded again. The handler gets the same Idempotency-Key; whether it acts twice is up to the handler."
	case actionRecord:
		c.Heading, c.Button, c.Danger, c.Target = "Record this message as processed?", "Record it", true, "/records/record"
		c.Text = "Every delivery of it is acked without a request from now on, although the handler has not seen it."
	default:
		return badRequest("action: %q is neither record nor forget", cut(q.Get("action"), 20))
	}
	return a.confirm(w, r, c)
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
