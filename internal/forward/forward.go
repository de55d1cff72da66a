package forward

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/inboxd/inboxd/internal/inbox"
)

// Forwarder posts the messages of one consumer to the application. Safe for
// concurrent use.
type Forwarder struct {
	opts    Options
	target  target
	mapper  *mapper
	auth    *authorization
	dialer  *dialer
	sender  sender
	breaker *breaker
	budget  *budget
	health  *health // nil without a health URL
	gate    *inbox.Gate
	log     *quietLog
	metrics *metrics

	life context.Context // ends with Kill
	kill context.CancelCauseFunc
	gone sync.Mutex
}

var _ inbox.Forwarder = (*Forwarder)(nil)

// New returns a Forwarder, with the gate shut where there is a health URL that
// has to answer first. All problems of the options are reported at once. Files
// must be readable now and may change later.
func New(o Options, gate *inbox.Gate, log *slog.Logger, reg prometheus.Registerer) (*Forwarder, error) {
	o.setDefaults()
	errs := []error{o.validate()}
	t, err := parseTarget(o.URL)
	if err != nil {
		errs = append(errs, fmt.Errorf("url: %w", err))
	}
	auth, err := newAuthorization(o.TokenFile, t)
	if err != nil {
		errs = append(errs, err)
	}
	files := &tlsFiles{files: o.TLS}
	if _, err := files.config(""); err != nil {
		errs = append(errs, fmt.Errorf("tls: %w", err))
	}
	var ht target
	if o.HealthURL != "" {
		if ht, err = parseTarget(o.HealthURL); err != nil {
			errs = append(errs, fmt.Errorf("health_url: %w", err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}

	log = log.With("consumer", o.ConsumerName)
	life, kill := context.WithCancelCause(context.Background())
	d := &dialer{target: t, timeout: min(o.Timeout, maxDialTime), tls: files}
	f := &Forwarder{
		opts: o, target: t, mapper: newMapper(&o), auth: auth, dialer: d,
		sender:  newSender(t, d, o.Concurrency),
		breaker: newBreaker(o.Breaker, o.Concurrency, gate, log),
		budget:  newBudget(o.Concurrency),
		gate:    gate, log: newQuietLog(log), life: life, kill: kill,
	}
	if f.metrics, err = newMetrics(reg, o.ConsumerName, f.breaker); err != nil {
		f.Kill()
		return nil, err
	}
	if o.HealthURL != "" {
		hd := &dialer{target: ht, timeout: healthTimeout, tls: files}
		var ha *authorization
		if ht.sameServer(t) {
			ha = auth
		}
		f.health = newHealth(gate, log, newHealthGet(ht, hd, ha, healthTimeout))
	}
	return f, nil
}

// Run asks the health URL and ends the pauses of an open breaker, until ctx
// ends. Without it an open breaker stays open. It returns nil.
func (f *Forwarder) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	if f.health != nil {
		wg.Go(func() { f.health.run(ctx) })
	}
	f.breaker.run(ctx, f.ask)
	wg.Wait()
	f.sender.close()
	return nil
}

// ask finds out, without a message, whether the application is there.
func (f *Forwarder) ask(ctx context.Context) error {
	if f.health != nil {
		return f.health.ask(ctx)
	}
	return f.dialer.knock(ctx)
}

// Kill cuts requests in flight short and lets no more go: the hard end of the
// process's grace.
func (f *Forwarder) Kill() { f.kill(ErrKilled) }

// ErrKilled is in the answer to a request that Kill cut short. The application
// may have processed the message.
var ErrKilled = errors.New("the grace of the process ended during the request")

// Forward implements inbox.Forwarder. It adds to d.Requests for every request
// really sent and sets d.LastAttempt to the time of the latest. A request that
// meets a dead kept-alive connection is repeated at once, once, on a fresh one:
// that makes two requests, of which only the second counts.
func (f *Forwarder) Forward(ctx context.Context, d *inbox.Delivery) inbox.Answer {
	p, err := f.admit(ctx, d)
	if err != nil {
		return inbox.Answer{Verdict: inbox.NotSent, Err: err}
	}
	start := time.Now()
	r, killed := f.exchange(d)
	j := f.read(r, killed)
	if j.Verdict.Counts() && f.opts.Evidence != nil && f.opts.Evidence(d) {
		// It committed and then failed to say so.
		j.Verdict, j.Err = inbox.Done, nil
	}
	if j.Verdict == inbox.Refused || j.Verdict == inbox.Misconfigured {
		j.message = distinction(d)
		if cause := f.likelyCause(r, d); cause != "" {
			j.Err = fmt.Errorf("%w: %s", j.Err, cause)
		}
	}
	answer := f.breaker.judge(p, j)
	f.metrics.count(answer.Verdict, time.Since(start))
	switch answer.Verdict {
	case inbox.Done:
		f.budget.success()
	case inbox.Misconfigured:
		f.log.say(slog.LevelError, 3*quietFor, "the handler's answer points at a wrong set-up",
			slog.Int("status_code", answer.Status), slog.Any("err", answer.Err))
	case inbox.Gone:
		f.pause(answer.Err.Error())
	}
	return answer
}

// admit waits until a request for d may go. Retries wait for the budget first,
// without holding a slot.
func (f *Forwarder) admit(ctx context.Context, d *inbox.Delivery) (pass, error) {
	if f.life.Err() != nil {
		return pass{}, context.Cause(f.life)
	}
	// Not the first request of a message that a person sent again, or that was
	// deferred: its answers are forgotten, and its due time has spread it.
	retry := d.Last.Verdict.Sent()
	if retry {
		if err := f.budget.take(ctx); err != nil {
			return pass{}, fmt.Errorf("waiting for the retry budget: %w", err)
		}
	}
	p, err := f.breaker.acquire(ctx)
	if err != nil {
		if retry {
			f.budget.giveBack()
		}
		return pass{}, fmt.Errorf("waiting for the application: %w", err)
	}
	return p, nil
}

// exchange sends the request for d. killed reports that Kill cut it short.
func (f *Forwarder) exchange(d *inbox.Delivery) (r reply, killed bool) {
	c := collectors.Get().(*collector)
	defer c.free()
	start := time.Now()
	deadline := start.Add(f.opts.Timeout)
	for _, fresh := range [...]bool{false, true} {
		r = f.sender.send(f.life, deadline, f.fields(c, d), d.Body, fresh)
		if r.reached {
			d.Requests++
			d.LastAttempt = start
		}
		// Nobody there for the repetition: the first may have been what killed
		// the application, and a message that does so must not go uncounted.
		r.reached = r.reached || fresh
		if r.err == nil {
			return r, false
		}
		now := time.Now()
		switch {
		case f.life.Err() != nil:
			r.err = context.Cause(f.life)
		case !now.Before(deadline):
			r.err = errTimeout
		case r.stale() && !fresh:
			f.metrics.repeats.Inc()
			start = now
			continue
		}
		break
	}
	return r, errors.Is(r.err, ErrKilled)
}

var errTimeout = errors.New("time-out")

func (f *Forwarder) fields(c *collector, d *inbox.Delivery) []field {
	fields := f.mapper.collect(c, d)
	value, lost := f.auth.header()
	if lost != nil {
		f.log.say(slog.LevelError, quietFor, "the token cannot be read again, the former one stays in use", slog.Any("err", lost))
	}
	if value != "" {
		fields = append(fields, field{"Authorization", value})
		c.fields = fields
	}
	return fields
}

// Request returns the next request for d as it would be sent, but for the
// credentials, which are redacted.
func (f *Forwarder) Request(d *inbox.Delivery) (*http.Request, error) {
	fields := f.mapper.fields(d)
	if value, _ := f.auth.header(); value != "" {
		fields = append(fields, field{"Authorization", "<redacted>"})
	}
	r := newRequest(context.Background(), f.target.url, fields, d.Body)
	//nolint:staticcheck // see newRequest: lower case keeps the transport from replaying
	if key, ok := r.Header["idempotency-key"]; ok {
		delete(r.Header, "idempotency-key")
		r.Header["Idempotency-Key"] = key
	}
	return r, nil
}

// pause shuts the gate after a 410. Of several at once only the first is told.
func (f *Forwarder) pause(why string) {
	f.gone.Lock()
	defer f.gone.Unlock()
	closures, _ := f.gate.State()
	for _, c := range closures {
		if c.Hindrance == inbox.HindrancePaused {
			return
		}
	}
	f.gate.Shut(inbox.HindrancePaused, why)
	f.log.say(slog.LevelWarn, 0, "consumer paused by the handler", slog.String("reason", why))
	if f.opts.OnGone != nil {
		f.opts.OnGone(why)
	}
}

// distinction tells different messages apart.
func distinction(d *inbox.Delivery) string {
	if d.ID != "" {
		return string(d.ID)
	}
	sum := sha256.Sum256(d.Body)
	return string(sum[:])
}

// Status is the state of a Forwarder for people.
type Status struct {
	Breaker  BreakerState  `json:"breaker"`
	Reason   string        `json:"reason,omitempty"` // why the breaker is not closed
	Since    time.Time     `json:"since"`            // of the breaker's state
	InFlight int           `json:"in_flight"`
	Oldest   time.Duration `json:"oldest_in_flight"` // age of the oldest request in flight

	Health      Health    `json:"health,omitempty"`
	HealthWhy   string    `json:"health_reason,omitempty"`
	HealthSince time.Time `json:"health_since,omitzero"`
}

// Status returns the state of this moment.
func (f *Forwarder) Status() Status {
	b := f.breaker.snapshot()
	s := Status{Breaker: b.state, Reason: b.why, Since: b.since}
	s.InFlight, s.Oldest = f.breaker.load()
	if f.health != nil {
		s.Health, s.HealthWhy, s.HealthSince = f.health.status()
	}
	return s
}
