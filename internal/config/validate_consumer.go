package config

import (
	"errors"
	"fmt"
	"mime"
	"regexp"
	"strings"
)

const (
	maxPrefetch    = 65535
	maxConcurrency = 10_000
	maxAttempts    = 10_000

	maxDeliveryLimit = 1_000_000
	// brokerMaxBody is the largest message that RabbitMQ can be set to take.
	brokerMaxBody = 512 << 20
)

// consumerName is what is safe in a URL's path, a label, a file name and a
// database column alike.
var consumerName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,200}$`)

func (c *Config) validateConsumers(r *report) {
	if len(c.Consumers) == 0 {
		r.check("consumers", errors.New("at least one is required, with name, queue and forward.url"))
	}
	first := map[string]int{}
	for i := range c.Consumers {
		path := fmt.Sprintf("consumers[%d]", i)
		name := c.Consumers[i].Name
		c.Consumers[i].validate(r, path)
		if at, twice := first[name]; twice && name != "" {
			r.check(path+".name", fmt.Errorf("is that of consumers[%d] too; names are half of the inbox key and must differ", at))
		} else {
			first[name] = i
		}
		c.validateTimes(r, i, path)
	}
}

// validateTimes checks the rules that bind a consumer to broker and store.
func (c *Config) validateTimes(r *report, i int, path string) {
	timeout, hold := c.Consumers[i].Forward.Timeout, c.Consumers[i].Retry.Hold
	if timeout <= 0 || hold <= 0 || r.failed(path+".forward.timeout") {
		return
	}
	limit := c.Broker.ConsumerTimeout / 5 * 4
	if c.Broker.ConsumerTimeout > 0 && hold+timeout > limit && !r.failed("broker.consumer_timeout") {
		r.check(path+".retry.hold", fmt.Errorf("%s and forward.timeout (%s) are together more than %s, which is 0.8 of broker.consumer_timeout (%s): "+
			"the broker would close the channel while the message waits; lower hold or timeout, or raise the broker's consumer_timeout and then this one",
			formatDuration(hold), formatDuration(timeout), formatDuration(limit), formatDuration(c.Broker.ConsumerTimeout)))
	}
	if c.Store.Retention > 0 && c.Store.Retention < hold+timeout && !r.failed("store.retention") {
		r.check("store.retention", fmt.Errorf("%s is less than the %s that a message of %s may be held: it would be forgotten while its duplicates are still on their way",
			formatDuration(c.Store.Retention), formatDuration(hold+timeout), path))
	}
}

func (c *Consumer) validate(r *report, path string) {
	switch {
	case c.Name == "":
		r.check(path+".name", errors.New("is required: half of the inbox key, so choose it once and for all"))
	case !consumerName.MatchString(c.Name) || strings.Trim(c.Name, ".") == "":
		r.check(path+".name", errors.New("must be 1 to 200 of A-Z a-z 0-9 . _ -, and not only dots"))
	}
	switch {
	case c.Queue == "":
		r.check(path+".queue", errors.New("is required"))
	case len(c.Queue) > 255:
		r.check(path+".queue", errors.New("must be at most 255 bytes long"))
	}
	r.word(path+".on_missing_id", c.OnMissingID, OnMissingIDPark, OnMissingIDForward, OnMissingIDReject)
	r.word(path+".on_mismatch", c.OnMismatch, OnMismatchPark, OnMismatchAck)
	if len(c.MessageID) == 0 {
		r.check(path+".message_id", errors.New("needs at least one source, such as property"))
	}
	c.validateFlow(r, path)
	c.Declare.validate(r, path+".declare")
	c.Forward.validate(r, path+".forward")
	c.Retry.validate(r, path+".retry")
	c.Park.validate(r, path+".park")
	c.Inbox.validate(r, path+".inbox")
}

func (c *Consumer) validateFlow(r *report, path string) {
	r.between(path+".concurrency", c.Concurrency, 1, maxConcurrency)
	if c.Prefetch == 0 {
		r.check(path+".prefetch", errors.New("must be auto, or 1 to 65535, got 0, which RabbitMQ takes for no limit at all"))
	}
	if c.Prefetch != PrefetchAuto {
		r.between(path+".prefetch", int(c.Prefetch), 1, maxPrefetch)
	}
	if c.Prefetch != PrefetchAuto && int(c.Prefetch) < c.Concurrency && !r.failed(path+".concurrency") {
		r.check(path+".prefetch", fmt.Errorf("must be at least concurrency (%d), got %d: requests can only be in flight for messages that the broker has handed over", c.Concurrency, c.Prefetch))
	}
	r.between(path+".delivery_limit", c.DeliveryLimit, DeliveryLimitAuto, maxDeliveryLimit)
	if c.MaxBody < 1 || c.MaxBody > brokerMaxBody {
		r.check(path+".max_body", fmt.Errorf("must be 1B to %s, got %s", Size(brokerMaxBody), c.MaxBody))
	}
}

// queueArguments that are settings of their own, or that lose messages.
var queueArguments = map[string]string{
	"x-queue-type": "is set by declare.type",
	"x-expires":    "would make the broker delete the queue and everything in it; leave it to a policy if that is meant",
}

func (d Declare) validate(r *report, path string) {
	if d.Type == "" {
		if len(d.Arguments) > 0 {
			r.check(path+".type", errors.New("is required to declare a queue: quorum or classic"))
		}
		return
	}
	r.word(path+".type", d.Type, "quorum", "classic")
	for name := range d.Arguments {
		if why := queueArguments[name]; why != "" {
			r.check(join(path+".arguments", name), errors.New(why))
		}
	}
}

func (f Forward) validate(r *report, path string) {
	target := r.httpURL(path+".url", f.URL)
	health := ""
	if !f.HealthURL.IsZero() {
		health = r.httpURL(path+".health_url", f.HealthURL)
	}
	r.positive(path+".timeout", f.Timeout)
	r.word(path+".idempotency_key", f.IdempotencyKey, "raw", "quoted")
	if f.ContentType != "" {
		if media, _, err := mime.ParseMediaType(f.ContentType); err != nil || !strings.Contains(media, "/") || !isPlain(f.ContentType) {
			r.check(path+".content_type", errors.New("must be a media type such as application/json"))
		}
	}
	r.file(path+".token_file", f.TokenFile)
	f.TLS.validate(r, path+".tls", target == "https" || health == "https" || r.failed(path+".url"))
}

// isPlain reports whether s can stand in a header line.
func isPlain(s string) bool {
	return strings.IndexFunc(s, func(c rune) bool { return c < ' ' || c > '~' }) < 0
}

// httpURL checks a handler's URL and returns its scheme.
func (r *report) httpURL(path string, u URL) string {
	parsed := r.url(path, u, "http", "https", "http+unix")
	switch {
	case parsed == nil:
		return ""
	case parsed.Fragment != "":
		r.check(path, errors.New("has a #fragment, which HTTP does not send"))
	case parsed.Scheme == "http+unix":
		socket, _, _ := strings.Cut(parsed.Path, ":")
		if parsed.Host != "" || !strings.HasPrefix(socket, "/") || len(socket) < 2 {
			r.check(path, errors.New("must be http+unix://, the absolute path of the socket, a colon, and the path: http+unix:///run/app.sock:/messages"))
		}
	}
	return parsed.Scheme
}

func (y Retry) validate(r *report, path string) {
	r.positive(path+".initial", y.Initial)
	r.positive(path+".max", y.Max)
	r.positive(path+".hold", y.Hold)
	r.between(path+".max_attempts", y.MaxAttempts, 1, maxAttempts)
	if y.Max > 0 && y.Initial > y.Max && !r.failed(path+".initial") {
		r.check(path+".max", fmt.Errorf("must be at least initial (%s), got %s", formatDuration(y.Initial), formatDuration(y.Max)))
	}
}

func (p Park) validate(r *report, path string) {
	if !p.ToBroker {
		return
	}
	if p.Exchange == "" && p.RoutingKey == "" {
		r.check(path, errors.New("needs an exchange, or the name of a queue as routing_key; or write store"))
	}
	if len(p.Exchange) > 255 || len(p.RoutingKey) > 255 {
		r.check(path, errors.New("exchange and routing_key must be at most 255 bytes long"))
	}
}

// tableName is a table, with or without its schema, as SQL has it unquoted.
var tableName = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]{0,62}\.)?[A-Za-z_][A-Za-z0-9_]{0,62}$`)

func (i Inbox) validate(r *report, path string) {
	if !i.URL.IsZero() {
		r.url(path+".url", i.URL, "postgres", "postgresql")
	} else if i.PasswordFile != "" {
		r.check(path+".url", errors.New("is required where password_file is set"))
	}
	r.file(path+".password_file", i.PasswordFile)
	if !tableName.MatchString(i.Table) {
		r.check(path+".table", errors.New("must be a table's name, such as inbox or shop.inbox"))
	}
	r.word(path+".evidence", i.Evidence, "require", "warn", "off")
	r.notNegative(path+".grace", i.Grace)
	r.notNegative(path+".retention", i.Retention)
}
