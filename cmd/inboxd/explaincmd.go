package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/inboxd/inboxd/internal/config"
	"github.com/inboxd/inboxd/internal/forward"
	"github.com/inboxd/inboxd/internal/inbox"
)

func runExplain(_ context.Context, env environment, args []string) int {
	fs := env.flags("explain", "-c FILE [--consumer NAME] [flags]", `Shows the exact request that a message would become: its ID and where that
comes from, every header, what is left out. Nothing is sent. The message comes
from --message FILE ("-" is standard input), which is one line of 'inboxd parked
export' or an object of this form, every field optional:

  {"properties": {"message_id": "…", "content_type": "…"}, "headers": {…},
   "exchange": "…", "routing_key": "…", "body": "<base64>", "body_text": "…"}

or from the flags.`)
	path := configFlag(fs)
	name := fs.String("consumer", "", "`NAME` of the consumer; not needed where there is only one")
	file := fs.String("message", "", "`FILE` with the message")
	id := fs.String("message-id", "", "the AMQP property message_id")
	contentType := fs.String("content-type", "", "the AMQP property content_type")
	headers := fs.String("headers", "", "header table as `JSON`, tagged as in Amqp-Headers")
	body := fs.String("body", "", "the body as text")
	if code, done := env.parse(fs, args, 0); done {
		return code
	}
	cfg, code := env.load(*path)
	if code != exitOK {
		return code
	}
	cc, err := pick(cfg, *name)
	if err != nil {
		env.errorf("%v", err)
		return exitUsage
	}
	m := inbox.Message{RoutingKey: cc.Queue, Body: []byte(*body)}
	m.Properties.MessageID, m.Properties.ContentType = *id, *contentType
	if *headers != "" {
		if m.Headers, err = inbox.UnmarshalTable([]byte(*headers)); err != nil {
			env.errorf("--headers: %v", err)
			return exitUsage
		}
	}
	if *file != "" {
		if m, err = readMessage(*file, env.stdin); err != nil {
			env.errorf("%s: %v", *file, err)
			return exitUsage
		}
	}
	if err := explain(env.stdout, cc, m); err != nil {
		env.errorf("%v", err)
		return exitFailed
	}
	return exitOK
}

func pick(cfg config.Config, name string) (config.Consumer, error) {
	var names []string
	for _, c := range cfg.Consumers {
		if c.Name == name || name == "" && len(cfg.Consumers) == 1 {
			return c, nil
		}
		names = append(names, c.Name)
	}
	if name == "" {
		return config.Consumer{}, fmt.Errorf("--consumer is missing; there are %s", strings.Join(names, ", "))
	}
	return config.Consumer{}, fmt.Errorf("there is no consumer %q; there are %s", name, strings.Join(names, ", "))
}

func explain(w io.Writer, cc config.Consumer, m inbox.Message) error {
	o, err := forwardOptions(cc)
	if err != nil {
		return err
	}
	f, err := forward.New(o, inbox.NewGate(), slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		return err
	}
	d := &inbox.Delivery{Message: m, Queue: cc.Queue, DeliveryCount: -1, Received: time.Now()}
	ident := identity(cc)
	var known bool
	d.ID, known = ident.MessageID(&d.Message)
	d.Fingerprint = ident.FingerprintOf(&d.Message)
	switch {
	case len(m.Body) > int(cc.MaxBody):
		fmt.Fprintf(w, "# parked as too_large: the body has %d bytes, max_body is %d; no request is sent\n", len(m.Body), cc.MaxBody)
		return nil
	case !known && cc.OnMissingID != config.OnMissingIDForward:
		fmt.Fprintf(w, "# no ID: none of message_id %v gives one, so on_missing_id: %s decides; no request is sent\n", cc.MessageID, cc.OnMissingID)
		return nil
	case !known:
		fmt.Fprintf(w, "# no ID: none of message_id %v gives one; forwarded without deduplication\n", cc.MessageID)
	default:
		fmt.Fprintf(w, "# inbox key: consumer %s, message ID %s\n", cc.Name, d.ID)
	}
	req, err := f.Request(d)
	if err != nil {
		return fmt.Errorf("the request cannot be built: %w", err)
	}
	writeRequest(w, req, m.Body)
	return nil
}

func writeRequest(w io.Writer, req *http.Request, body []byte) {
	fmt.Fprintf(w, "%s %s HTTP/1.1\nHost: %s\n", req.Method, req.URL.RequestURI(), req.URL.Host)
	names := make([]string, 0, len(req.Header))
	for name := range req.Header {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		for _, v := range req.Header[name] {
			if name == "Authorization" {
				v = "<redacted>"
			}
			fmt.Fprintf(w, "%s: %s\n", name, v)
		}
	}
	fmt.Fprintf(w, "Content-Length: %d\n\n", len(body))
	if utf8.Valid(body) {
		fmt.Fprintf(w, "%s\n", body)
		return
	}
	fmt.Fprintf(w, "# %d bytes that are no UTF-8, in base64:\n%s\n", len(body), base64.StdEncoding.EncodeToString(body))
}

// readMessage reads the first JSON object of a file.
func readMessage(path string, stdin io.Reader) (m inbox.Message, err error) {
	in := stdin
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return m, err
		}
		defer f.Close()
		in = f
	}
	var raw struct {
		Exchange   string          `json:"exchange"`
		RoutingKey string          `json:"routing_key"`
		Headers    json.RawMessage `json:"headers"`
		Body       []byte          `json:"body"`
		BodyText   string          `json:"body_text"`
		Properties struct {
			ContentType     string    `json:"content_type"`
			ContentEncoding string    `json:"content_encoding"`
			Priority        uint8     `json:"priority"`
			CorrelationID   string    `json:"correlation_id"`
			ReplyTo         string    `json:"reply_to"`
			Expiration      string    `json:"expiration"`
			MessageID       string    `json:"message_id"`
			Timestamp       time.Time `json:"timestamp"`
			Type            string    `json:"type"`
			UserID          string    `json:"user_id"`
			AppID           string    `json:"app_id"`
		} `json:"properties"`
	}
	if err := json.NewDecoder(in).Decode(&raw); err != nil {
		return m, err
	}
	p := raw.Properties
	m = inbox.Message{
		Exchange: raw.Exchange, RoutingKey: raw.RoutingKey, Body: raw.Body,
		Properties: inbox.Properties{
			ContentType: p.ContentType, ContentEncoding: p.ContentEncoding, Priority: p.Priority,
			CorrelationID: p.CorrelationID, ReplyTo: p.ReplyTo, Expiration: p.Expiration, MessageID: p.MessageID,
			Timestamp: p.Timestamp, Type: p.Type, UserID: p.UserID, AppID: p.AppID,
		},
	}
	if raw.BodyText != "" {
		m.Body = []byte(raw.BodyText)
	}
	if len(raw.Headers) > 0 {
		if m.Headers, err = inbox.UnmarshalTable(raw.Headers); err != nil {
			return m, fmt.Errorf("headers: %w", err)
		}
	}
	return m, nil
}
