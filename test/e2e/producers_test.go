package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/inboxd/inboxd/internal/testenv"
)

// python is the distribution's, which has the distribution's libraries,
// whatever else is in PATH.
const python = "/usr/bin/python3"

const scripts = "testdata/producers/"

// A producer is a client library of another language. Its script publishes the
// message "rich" twice, "dead" to a queue that dead-letters it, and others.
type producer struct {
	command []string // gets the broker's URL and the two queues, then the arguments more
	more    []string
	needs   []string // fails where the library is not installed
	other   []string // keys of the others
	body    string   // of "rich"
	// headers are the entries of the header table of "rich" and "dead".
	headers map[string]shown
	plain   map[string]string // header fields of "rich" from properties
}

// shown is how a handler must see one header: in Amqp-Headers, and in a field
// of its own, or not there.
type shown struct {
	json  string
	field string // "-" for none
}

func same(s string) shown { return shown{s, s} }

// rich are the headers that the scripts have in common, as far as a library can
// send them.
var rich = map[string]shown{
	"big":          same("1099511627777"),
	"odd":          same("9007199254740993"), // no float has this value
	"negative":     same("-5"),
	"negative_big": same("-1099511627777"),
	"when":         {`{"timestamp":"2024-05-01T12:00:00Z"}`, "2024-05-01T12:00:00Z"},
	"bytes":        {`{"bytes":"AP8="}`, "%00%FF"},
	"float":        same("1.5"),
	"decimal":      {`{"decimal":"12.34"}`, "12.34"},
	"yes":          same("true"),
	"no":           same("false"),
	"nothing":      {"null", "-"},
	"text":         {`"Müller"`, "M%C3%BCller"},
	"nested":       {`{"a":{"b":[1,"two",{"c":true}]},"when":{"timestamp":"2024-05-01T12:00:00Z"}}`, "-"},
	"list":         {`[1,-1099511627777,"x",null,false]`, "-"},
}

// but returns the rich headers with changes; the zero shown removes one.
func but(changes map[string]shown) map[string]shown {
	m := maps.Clone(rich)
	maps.Copy(m, changes)
	maps.DeleteFunc(m, func(_ string, s shown) bool { return s == shown{} })
	return m
}

var properties = map[string]string{
	"Content-Type":          "application/json",
	"Content-Encoding":      "", // frameworks answer 415 to utf-8
	"Amqp-Content-Encoding": "utf-8",
	"Amqp-Timestamp":        "1714564800123", // milliseconds, beyond every calendar
	"Amqp-Message-Id":       "rich",
	"Amqp-Correlation-Id":   "corr 1",
	"Amqp-Reply-To":         "answers",
	"Amqp-Type":             "order.paid",
	"Amqp-App-Id":           "shop",
	"Amqp-Priority":         "5",
	"Amqp-Encoded":          "Amqp-Header-Bytes, Amqp-Header-Text",
	"Amqp-Headers-Omitted":  "",
}

const bare = "bare%20%C3%BC" // a message with nothing but its ID

var producers = map[string]producer{
	"pika": {
		command: []string{python, scripts + "pika_publish.py"},
		needs:   []string{python, "-c", "import pika"},
		other:   []string{bare}, body: `{"n":1}`, plain: properties,
		headers: but(map[string]shown{
			"float": {}, // cannot send one
			"list":  {`[1,-1099511627777,"x",null,false,{"bytes":"AQ=="}]`, "-"},
		}),
	},
	"py-amqp": {
		command: []string{python, scripts + "pyamqp_publish.py"},
		needs:   []string{python, "-c", "import amqp"},
		body:    `{"n":1}`, plain: properties,
		headers: but(map[string]shown{
			"decimal": {`{"decimal":"-12.30"}`, "-12.30"},
			"nested":  {`{"a":{"b":[1,"two",{"c":1099511627777}]},"when":{"timestamp":"2024-05-01T12:00:00Z"}}`, "-"},
		}),
	},
	"kombu": {
		command: []string{python, scripts + "kombu_publish.py"},
		needs:   []string{python, "-c", "import kombu"},
		other:   []string{"packed"}, body: `{"n": 1}`,
		plain: map[string]string{
			"Content-Type": "application/json", "Content-Encoding": "", "Amqp-Content-Encoding": "utf-8",
			"Amqp-Correlation-Id": "corr 1", "Amqp-Encoded": "Amqp-Header-Argsrepr",
		},
		headers: map[string]shown{
			"big":       same("1099511627777"),
			"negative":  same("-5"),
			"retries":   same("0"),
			"eta":       {"null", "-"},
			"timelimit": {"[null,null]", "-"},
			"argsrepr":  {`"('Müller',)"`, "('M%C3%BCller',)"},
		},
	},
	"amqplib": {
		command: []string{"node", scripts + "node/publish.js"},
		needs:   []string{"node", "-e", "require('./" + scripts + "node/node_modules/amqplib')"},
		other:   []string{bare}, body: `{"n":1}`, plain: properties,
		headers: but(map[string]shown{
			"odd":            {}, // a float there
			"negative_short": same("-300"),
			"unsigned":       same("4294967295"),
			"single":         same("0.25"),
		}),
	},
	"php-amqplib": {
		command: []string{"php", scripts + "publish.php"},
		needs:   []string{"php", "-r", "require 'PhpAmqpLib/autoload.php';"},
		body:    `{"n":1}`, plain: properties,
		headers: but(map[string]shown{
			"float": {`"1.5"`, "1.5"}, // sent as text
			"small": same("-5"), "short": same("-300"), "unsigned": same("4294967295"),
		}),
	},
	"php-amqplib with strict field types": {
		command: []string{"php", scripts + "publish.php"},
		more:    []string{"strict"},
		needs:   []string{"php", "-r", "require 'PhpAmqpLib/autoload.php';"},
		body:    `{"n":1}`, plain: properties,
		headers: but(map[string]shown{
			"float": {`"1.5"`, "1.5"},
			"small": same("-5"), "unsigned": same("4294967295"),
		}),
	},
	"bunny": {
		command: []string{"ruby", scripts + "publish.rb"},
		needs:   []string{"ruby", "-e", "require 'bunny'"},
		other:   []string{bare}, body: `{"n":1}`, plain: properties,
		headers: but(map[string]shown{
			"decimal": {`{"decimal":"12"}`, "12"}, // loses digits behind the point itself
		}),
	},
}

// TestMessagesOfOtherLanguagesClients: what a client library of another language
// publishes reaches the handler with the right ID and the right headers, by the
// straight way and by a dead-letter exchange, and nothing in it is parked, stops
// the queue or costs a connection.
func TestMessagesOfOtherLanguagesClients(t *testing.T) {
	t.Parallel()
	amqpURL := testenv.AMQPURL(t)
	for name, p := range producers {
		for _, kind := range []string{"classic", "quorum"} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				p.require(t)
				q := queue(t, amqpURL, kind)
				waiting := expiringQueue(t, amqpURL, kind, q)
				run(t, append(slices.Concat(p.command, []string{amqpURL, q, waiting}), p.more...)...)
				handler := newRecorder(t)
				d := newDaemon(t, settings{amqp: amqpURL, queue: q, handler: handler.URL})
				d.start()
				keys := append([]string{"dead", "rich"}, p.other...)
				eventually(t, 60*time.Second, "every message is processed", func() bool {
					return d.outcome("processed") == len(keys) && d.outcome("duplicate") == 1
				})
				d.awaitSettled(amqpURL, q, 60*time.Second)
				d.wantNothingElse(len(keys) + 1)
				t.Logf("%v header tables with field types that the AMQP library cannot read", d.metric("inboxd_header_tables_repaired_total", `result="rewritten"`))
				d.stop()

				slices.Sort(keys)
				if got := handler.keys(); !slices.Equal(got, keys) {
					t.Errorf("keys at the handler: got %q, want %q", got, keys)
				}
				p.checkRich(t, handler.get("rich"))
				p.checkDead(t, handler.get("dead"), waiting)
			})
		}
	}
}

// require skips the test where the library is not installed, or fails it in CI.
func (p *producer) require(t *testing.T) {
	t.Helper()
	requireCommand(t, p.needs...)
}

func requireCommand(t *testing.T, command ...string) {
	t.Helper()
	out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
	if err == nil {
		return
	}
	text := "not installed, which scripts/install-test-deps does: " + strings.Join(command, " ")
	if os.Getenv("CI") != "" {
		t.Fatalf("%s: %v\n%s", text, err, out)
	}
	t.Skip(text)
}

func run(t *testing.T, command ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
}

// expiringQueue declares a queue whose messages go to another one at once.
func expiringQueue(t *testing.T, amqpURL, kind, to string) string {
	t.Helper()
	name := testenv.UniqueName("e2e")
	err := testenv.DeclareQueue(amqpURL, name, amqp.Table{
		"x-queue-type": kind, "x-message-ttl": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": to,
	})
	if err != nil {
		t.Fatalf("declaring a queue: %v", err)
	}
	t.Cleanup(func() { _ = testenv.DeleteQueue(amqpURL, name) })
	return name
}

// wantNothingElse wants all deliveries acked, in one session, with no header
// table cut.
func (d *daemon) wantNothingElse(acked int) {
	d.t.Helper()
	for what, n := range map[string]struct{ got, want float64 }{
		"parked":   {d.metric("inboxd_parked_total"), 0},
		"returned": {d.metric("inboxd_deliveries_total", `outcome="returned"`), 0},
		"acked":    {d.metric("inboxd_settled_total", `decision="ack"`), float64(acked)},
		"sessions": {d.metric("inboxd_broker_sessions_total"), 1},
		"cut":      {d.metric("inboxd_header_tables_repaired_total", `result="cut"`), 0},
	} {
		if n.got != n.want {
			d.t.Errorf("%s: got %v, want %v", what, n.got, n.want)
		}
	}
}

func (p *producer) checkRich(t *testing.T, r request) {
	t.Helper()
	if string(r.body) != p.body {
		t.Errorf("body: got %q, want %q", r.body, p.body)
	}
	for name, want := range p.plain {
		if got := r.header.Get(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	if got, want := r.named(), p.named(); !maps.Equal(got, want) {
		t.Errorf("Amqp-Header-…: got %q, want %q", got, want)
	}
	if got, want := r.table(t), p.table(t); !reflect.DeepEqual(got, want) {
		t.Errorf("Amqp-Headers: got\n%v, want\n%v", got, want)
	}
}

// checkDead wants what "rich" has and the history that the broker wrote.
func (p *producer) checkDead(t *testing.T, r request, waiting string) {
	t.Helper()
	named := p.named()
	named["X-First-Death-Exchange"] = ""
	named["X-First-Death-Queue"] = waiting
	named["X-First-Death-Reason"] = "expired"
	got := r.named()
	// Newer brokers add the last death to the first.
	maps.DeleteFunc(got, func(name, _ string) bool { return strings.HasPrefix(name, "X-Last-Death-") })
	if !maps.Equal(got, named) {
		t.Errorf("Amqp-Header-… of the dead-lettered message: got %q, want %q", got, named)
	}
	table := r.table(t)
	checkDeath(t, table["x-death"], waiting, "expired")
	maps.DeleteFunc(table, func(name string, _ any) bool { return strings.HasPrefix(name, "x-") })
	if want := p.table(t); !reflect.DeepEqual(table, want) {
		t.Errorf("Amqp-Headers of the dead-lettered message: got\n%v, want\n%v", table, want)
	}
}

func checkDeath(t *testing.T, got any, queue, reason string) {
	t.Helper()
	deaths, _ := got.([]any)
	if len(deaths) != 1 {
		t.Fatalf("x-death: got %v, want one entry", got)
	}
	death, _ := deaths[0].(map[string]any)
	if death["queue"] != queue || death["reason"] != reason || death["count"] != json.Number("1") ||
		!reflect.DeepEqual(death["routing-keys"], []any{queue}) {
		t.Errorf("x-death: got %v, want queue %s, reason %s, count 1", death, queue, reason)
	}
	tag, _ := death["time"].(map[string]any)
	text, _ := tag["timestamp"].(string)
	if at, err := time.Parse(time.RFC3339, text); err != nil || time.Since(at).Abs() > time.Hour {
		t.Errorf("x-death: got time %v, want a timestamp of now", death["time"])
	}
}

// named returns the fields that the headers must have, without their prefix.
func (p *producer) named() map[string]string {
	m := map[string]string{}
	for name, s := range p.headers {
		if s.field != "-" {
			m[http.CanonicalHeaderKey(strings.ReplaceAll(name, "_", "-"))] = s.field
		}
	}
	return m
}

func (p *producer) table(t *testing.T) map[string]any {
	t.Helper()
	m := map[string]any{}
	for name, s := range p.headers {
		m[name] = decode(t, s.json)
	}
	return m
}

// decode keeps numbers as they are written.
func decode(t *testing.T, text string) (v any) {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	if err := dec.Decode(&v); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return v
}

// request is what a handler saw.
type request struct {
	header http.Header
	body   []byte
}

func (r request) named() map[string]string {
	m := map[string]string{}
	for name, values := range r.header {
		if short, ok := strings.CutPrefix(name, "Amqp-Header-"); ok {
			m[short] = strings.Join(values, " and ")
		}
	}
	return m
}

func (r request) table(t *testing.T) map[string]any {
	t.Helper()
	table, _ := decode(t, r.header.Get("Amqp-Headers")).(map[string]any)
	return table
}

// recorder is a handler that keeps the last request for each key.
type recorder struct {
	*app
	mu   sync.Mutex
	last map[string]request
}

func newRecorder(t *testing.T) *recorder {
	rec := &recorder{last: map[string]request{}}
	rec.app = newApp(t, func(_ http.ResponseWriter, r *http.Request, key string, body []byte) {
		sum := sha256.Sum256(body)
		if got, want := r.Header.Get("Inbox-Fingerprint"), hex.EncodeToString(sum[:8]); got != want {
			t.Errorf("%s: Inbox-Fingerprint: got %s, want %s, of the body that came", key, got, want)
		}
		rec.mu.Lock()
		defer rec.mu.Unlock()
		rec.last[key] = request{r.Header.Clone(), body}
	})
	return rec
}

func (rec *recorder) get(key string) request {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	return rec.last[key]
}

func (rec *recorder) keys() []string {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	return slices.Sorted(maps.Keys(rec.last))
}

// TestMessagesOfTheCommandLine: amqp-publish can set no message ID, so the ID
// comes from a header.
func TestMessagesOfTheCommandLine(t *testing.T) {
	t.Parallel()
	amqpURL := testenv.AMQPURL(t)
	requireCommand(t, "amqp-publish", "--help")
	q := queue(t, amqpURL, "classic")
	server := strings.TrimSuffix(amqpURL, "/") // with it, a virtual host without a name is meant
	for range 2 {
		run(t, "amqp-publish", "--url="+server, "-r", q, "-p", "-C", "text/plain", "-E", "utf-8", "-t", "answers",
			"-H", "message-id: from the shell", "-H", "n: 1099511627777", "-b", "text")
	}
	handler := newRecorder(t)
	d := newDaemon(t, settings{
		amqp: amqpURL, queue: q, handler: handler.URL,
		consumer: "    message_id: [property, \"header:message-id\"]\n",
	})
	d.start()
	eventually(t, 60*time.Second, "one is processed, one a duplicate", func() bool {
		return d.outcome("processed") == 1 && d.outcome("duplicate") == 1
	})
	d.awaitSettled(amqpURL, q, 60*time.Second)
	d.wantNothingElse(2)
	d.stop()
	r := handler.get("from%20the%20shell")
	for name, want := range map[string]string{
		"Content-Type": "text/plain", "Content-Encoding": "", "Amqp-Content-Encoding": "utf-8", "Amqp-Reply-To": "answers",
		"Amqp-Header-Message-Id": "from the shell", "Amqp-Header-N": "1099511627777",
	} {
		if got := r.header.Get(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	if string(r.body) != "text" {
		t.Errorf("body: got %q, want text", r.body)
	}
}

// TestARejectedMessageComesWithItsHistory: a consumer has rejected the message
// into our queue.
func TestARejectedMessageComesWithItsHistory(t *testing.T) {
	t.Parallel()
	amqpURL := testenv.AMQPURL(t)
	q := queue(t, amqpURL, "quorum")
	first := testenv.UniqueName("e2e")
	err := testenv.DeclareQueue(amqpURL, first, amqp.Table{
		"x-queue-type": "quorum", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": q,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = testenv.DeleteQueue(amqpURL, first) })
	publish(t, amqpURL, first, amqp.Publishing{MessageId: "r1", Body: []byte("{}"), Headers: amqp.Table{"x-retries": int64(3)}})
	rejectOne(t, amqpURL, first)

	handler := newRecorder(t)
	d := newDaemon(t, settings{amqp: amqpURL, queue: q, handler: handler.URL})
	d.start()
	eventually(t, 60*time.Second, "it is processed", func() bool { return d.outcome("processed") == 1 })
	d.stop()
	r := handler.get("r1")
	checkDeath(t, r.table(t)["x-death"], first, "rejected")
	if got := r.header.Get("Amqp-Header-X-First-Death-Reason") + " " + r.header.Get("Amqp-Header-X-Retries"); got != "rejected 3" {
		t.Errorf("got %q, want the reason of the first death and the producer's own header", got)
	}
}

func rejectOne(t *testing.T, amqpURL, queue string) {
	t.Helper()
	conn, err := amqp.Dial(amqpURL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, 30*time.Second, "a message is rejected", func() bool {
		m, ok, err := ch.Get(queue, false)
		if err == nil && ok {
			err = m.Reject(false)
		}
		if err != nil && !errors.Is(err, amqp.ErrClosed) {
			t.Fatal(err)
		}
		return ok
	})
}
