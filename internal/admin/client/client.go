// Package client speaks the admin API, and holds the commands that do: the
// command line is a client like any other.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/inboxd/inboxd/internal/admin"
	"github.com/inboxd/inboxd/internal/inbox"
)

// Client speaks to one daemon. Safe for concurrent use.
type Client struct {
	// Admin and Metrics are base URLs, such as http://127.0.0.1:9321.
	Admin, Metrics string
	// Token returns the bearer token, "" for none. Nil means none.
	Token func() (string, error)
	// Actor is who acts, for the audit table.
	Actor string
}

// httpClient uses no proxy of the environment, follows no redirect, and has no
// limit on a whole answer: exports and drains take their time.
var httpClient = &http.Client{
	Transport: &http.Transport{
		DialContext:           (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		TLSHandshakeTimeout:   5 * time.Second,
		ExpectContinueTimeout: time.Second,
		MaxIdleConnsPerHost:   4,
		IdleConnTimeout:       30 * time.Second,
	},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// patience is how long an answer that is not streamed may take.
const patience = 30 * time.Second

// send returns the answer to a request, or a *admin.Problem. The caller closes
// the body.
func (c *Client) send(ctx context.Context, method, path string, q url.Values, body io.Reader) (*http.Response, error) {
	u := strings.TrimSuffix(c.Admin, "/") + path
	if len(q) > 0 {
		u += "?" + q.Encode()
	}
	r, err := http.NewRequestWithContext(ctx, method, u, body)
	if err != nil {
		return nil, fmt.Errorf("the admin address: %w", err)
	}
	r.Header.Set("User-Agent", "inboxd")
	if c.Actor != "" {
		r.Header.Set("X-Inboxd-Actor", c.Actor)
	}
	if c.Token != nil {
		token, err := c.Token()
		if err != nil {
			return nil, err
		}
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
	}
	res, err := httpClient.Do(r)
	if err != nil {
		return nil, unreachable(ctx, c.Admin, err)
	}
	if res.StatusCode >= 300 {
		defer res.Body.Close()
		return nil, problemOf(res)
	}
	return res, nil
}

func unreachable(ctx context.Context, base string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var dial *net.OpError
	if errors.As(err, &dial) && dial.Op == "dial" {
		return fmt.Errorf("no daemon answers at %s (is it running? -c FILE or --admin URL says where): %w", base, dial.Err)
	}
	return err
}

// problemOf reads the error that an answer carries.
func problemOf(res *http.Response) error {
	b, _ := io.ReadAll(io.LimitReader(res.Body, 64<<10))
	p := &admin.Problem{Title: http.StatusText(res.StatusCode), Status: res.StatusCode}
	if ct, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")); ct == "application/problem+json" {
		_ = json.Unmarshal(b, p) // what can be read of it
	} else {
		p.Detail = fmt.Sprintf("this is not inboxd's admin side: it answered %s", res.Status)
	}
	return p
}

// call sends a request and decodes its answer into out.
func (c *Client) call(ctx context.Context, method, path string, q url.Values, out any) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return c.callLong(ctx, method, path, q, nil, out)
}

func (c *Client) callLong(ctx context.Context, method, path string, q url.Values, body io.Reader, out any) error {
	res, err := c.send(ctx, method, path, q, body)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if err := json.NewDecoder(res.Body).Decode(out); err != nil {
		return fmt.Errorf("reading the answer of %s: %w", c.Admin, err)
	}
	return nil
}

// Filter selects parked messages; empty fields select everything.
type Filter struct {
	Consumer, Reason, State, MessageID, Raw, Older, Before string
}

// Values writes f as a query.
func (f Filter) Values() url.Values {
	q := url.Values{}
	for name, value := range map[string]string{
		"consumer": f.Consumer, "reason": f.Reason, "state": f.State, "message_id": f.MessageID,
		"raw": f.Raw, "older": f.Older, "before": f.Before,
	} {
		if value != "" {
			q.Set(name, value)
		}
	}
	return q
}

// Status returns the state of the daemon.
func (c *Client) Status(ctx context.Context) (s admin.Status, err error) {
	return s, c.call(ctx, http.MethodGet, "/api/status", nil, &s)
}

// Parked returns one page of stored messages.
func (c *Client) Parked(ctx context.Context, f Filter, after string, limit int) (l admin.ParkedList, err error) {
	q := f.Values()
	q.Set("limit", fmt.Sprint(limit))
	if after != "" {
		q.Set("after", after)
	}
	return l, c.call(ctx, http.MethodGet, "/api/parked", q, &l)
}

// Get returns one stored message whole.
func (c *Client) Get(ctx context.Context, id string) (p admin.ParkedWhole, err error) {
	return p, c.call(ctx, http.MethodGet, "/api/parked/"+escape(id), nil, &p)
}

// Act replays or discards one stored message.
func (c *Client) Act(ctx context.Context, action, id, why string) (d admin.Done, err error) {
	return d, c.call(ctx, http.MethodPost, "/api/parked/"+escape(id)+"/"+action, because(why), &d)
}

// Start begins a replay or discard of all that f selects.
func (c *Client) Start(ctx context.Context, action string, f Filter, all bool, rate int, why string) (j admin.Job, err error) {
	q := f.Values()
	q.Set("why", why)
	if all {
		q.Set("all", "true")
	}
	if rate > 0 {
		q.Set("rate", fmt.Sprint(rate))
	}
	return j, c.call(ctx, http.MethodPost, "/api/parked/"+action, q, &j)
}

// Jobs returns the replays and discards by filter, newest first.
func (c *Client) Jobs(ctx context.Context) (l admin.JobList, err error) {
	return l, c.call(ctx, http.MethodGet, "/api/jobs", nil, &l)
}

// Job returns how far one of them is.
func (c *Client) Job(ctx context.Context, id string) (j admin.Job, err error) {
	return j, c.call(ctx, http.MethodGet, "/api/jobs/"+escape(id), nil, &j)
}

// StopJob stops one of them.
func (c *Client) StopJob(ctx context.Context, id, why string) (j admin.Job, err error) {
	return j, c.call(ctx, http.MethodDelete, "/api/jobs/"+escape(id), because(why), &j)
}

// ResumeJob lets a stopped one go on.
func (c *Client) ResumeJob(ctx context.Context, id, why string) (j admin.Job, err error) {
	return j, c.call(ctx, http.MethodPost, "/api/jobs/"+escape(id)+"/resume", because(why), &j)
}

// Export writes whole messages to w, one JSON object a line. It returns how
// many, and an error where the export is not complete.
func (c *Client) Export(ctx context.Context, f Filter, why string, w io.Writer) (n int, err error) {
	q := f.Values()
	q.Set("why", why)
	res, err := c.send(ctx, http.MethodGet, "/api/parked/export", q, nil)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	lines := &lineCounter{w: w}
	if _, err := io.Copy(lines, res.Body); err != nil {
		return lines.n, fmt.Errorf("the export broke off: %w", err)
	}
	return lines.n, nil
}

type lineCounter struct {
	w io.Writer
	n int
}

func (l *lineCounter) Write(b []byte) (int, error) {
	l.n += bytes.Count(b, []byte{'\n'})
	return l.w.Write(b)
}

// Import stores the lines of an export.
func (c *Client) Import(ctx context.Context, r io.Reader, park bool, why string) (i admin.Imported, err error) {
	q := because(why)
	if park {
		q.Set("state", string(inbox.StateParked))
	}
	return i, c.callLong(ctx, http.MethodPost, "/api/parked/import", q, r, &i)
}

// ImportIDs records one ID a line.
func (c *Client) ImportIDs(ctx context.Context, consumer string, r io.Reader, canonical bool, why string) (i admin.Imported, err error) {
	q := because(why)
	if canonical {
		q.Set("canonical", "true")
	}
	return i, c.callLong(ctx, http.MethodPost, "/api/records/"+escape(consumer)+"/import", q, r, &i)
}

// ID is a message ID: in canonical form, or as the producer wrote it.
type ID struct {
	Text string
	Raw  bool
}

// record sends one verb about a record, or asks about a message.
func (c *Client) record(ctx context.Context, method, what, consumer string, id ID, q url.Values, out any) error {
	path := "/api/" + what + "/" + escape(consumer)
	if id.Raw {
		q.Set("raw", id.Text)
	} else {
		path += "/" + escape(id.Text)
	}
	return c.call(ctx, method, path, q, out)
}

// Message returns all that is known of one message.
func (c *Client) Message(ctx context.Context, consumer string, id ID) (l admin.MessageLedger, err error) {
	return l, c.record(ctx, http.MethodGet, "messages", consumer, id, url.Values{}, &l)
}

// Forget deletes a record.
func (c *Client) Forget(ctx context.Context, consumer string, id ID, why string) (r admin.Record, err error) {
	return r, c.record(ctx, http.MethodDelete, "records", consumer, id, because(why), &r)
}

// Record marks a message as processed.
func (c *Client) Record(ctx context.Context, consumer string, id ID, fingerprint, why string) (r admin.Record, err error) {
	q := because(why)
	if fingerprint != "" {
		q.Set("fingerprint", fingerprint)
	}
	return r, c.record(ctx, http.MethodPut, "records", consumer, id, q, &r)
}

// SetPaused pauses or resumes a consumer.
func (c *Client) SetPaused(ctx context.Context, consumer string, paused bool, why string) (d admin.Done, err error) {
	verb := "resume"
	if paused {
		verb = "pause"
	}
	return d, c.call(ctx, http.MethodPost, "/api/consumers/"+escape(consumer)+"/"+verb, because(why), &d)
}

// Drain stops consuming and waits until nothing is in flight, at most for
// limit (0: the daemon's own).
func (c *Client) Drain(ctx context.Context, limit time.Duration, why string) (d admin.Drained, err error) {
	q := because(why)
	if limit > 0 {
		q.Set("timeout", limit.String())
	}
	return d, c.callLong(ctx, http.MethodPost, "/drain", q, nil, &d)
}

// Audit returns the newest deeds of people, newest first.
func (c *Client) Audit(ctx context.Context, limit int) (l admin.AuditList, err error) {
	return l, c.call(ctx, http.MethodGet, "/api/audit", url.Values{"limit": {fmt.Sprint(limit)}}, &l)
}

// Health asks an endpoint of the metrics side (livez, readyz, consuming). It
// returns whether the answer is yes, and its words.
func (c *Client) Health(ctx context.Context, endpoint string) (ok bool, words []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(c.Metrics, "/")+"/"+endpoint, nil)
	if err != nil {
		return false, nil, fmt.Errorf("the metrics address: %w", err)
	}
	res, err := httpClient.Do(r)
	if err != nil {
		return false, nil, unreachable(ctx, c.Metrics, err)
	}
	defer res.Body.Close()
	words, err = io.ReadAll(io.LimitReader(res.Body, 1<<20))
	return res.StatusCode == http.StatusOK, words, err
}

func because(why string) url.Values {
	q := url.Values{}
	if why != "" {
		q.Set("why", why)
	}
	return q
}

// escape encodes a path element, its dots too: a message may be called "..".
func escape(s string) string {
	return strings.ReplaceAll(url.PathEscape(s), ".", "%2E")
}
