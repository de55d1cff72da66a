package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/inboxd/inboxd/internal/config"
	"github.com/inboxd/inboxd/internal/consumer"
	"github.com/inboxd/inboxd/internal/forward"
	"github.com/inboxd/inboxd/internal/inbox"
	"github.com/inboxd/inboxd/internal/store"
	"github.com/inboxd/inboxd/internal/store/postgres"
	"github.com/inboxd/inboxd/internal/store/shared"
	"github.com/inboxd/inboxd/internal/store/sqlite"
)

// This file turns the configuration into each package's own options. Nothing
// else knows both.

const sqliteScheme = "sqlite:"

func isEmbedded(c config.Config) bool {
	return strings.HasPrefix(c.Store.URL.Reveal(), sqliteScheme)
}

func openStore(ctx context.Context, c config.Config, log *slog.Logger, reg prometheus.Registerer) (store.Store, error) {
	if isEmbedded(c) {
		return sqlite.Open(ctx, sqliteOptions(c), log, reg)
	}
	return postgres.Open(ctx, postgresOptions(c), log, reg)
}

func sqliteOptions(c config.Config) sqlite.Options {
	return sqlite.Options{
		Path:      strings.TrimPrefix(c.Store.URL.Reveal(), sqliteScheme),
		Retention: c.Store.Retention,
		Consumers: consumerNames(c),
	}
}

func postgresOptions(c config.Config) postgres.Options {
	return postgres.Options{
		URL:       c.Store.URL.Reveal(),
		Password:  passwordFrom(c.Store.PasswordFile),
		Retention: c.Store.Retention,
		Consumers: consumerNames(c),
		Leases:    leases(c.Store.Leases),
	}
}

func leases(word string) postgres.Leases {
	switch word {
	case config.LeasesAlways:
		return postgres.LeasesAlways
	case config.LeasesNever:
		return postgres.LeasesNever
	default:
		return postgres.LeasesAuto
	}
}

func consumerNames(c config.Config) []string {
	names := make([]string, len(c.Consumers))
	for i, cc := range c.Consumers {
		names[i] = cc.Name
	}
	return names
}

// passwordFrom returns a function that reads the password anew at each call, or
// nil where there is no file.
func passwordFrom(file string) func() (string, error) {
	if file == "" {
		return nil
	}
	return func() (string, error) {
		s, err := config.ReadSecret(file)
		return s.Reveal(), err
	}
}

func sharedOptions(cc config.Consumer) shared.Options {
	return shared.Options{
		Consumer:     cc.Name,
		URL:          cc.Inbox.URL.Reveal(),
		PasswordFile: cc.Inbox.PasswordFile,
		Table:        cc.Inbox.Table,
		Evidence:     shared.Evidence(cc.Inbox.Evidence),
		Grace:        cmp.Or(cc.Inbox.Grace, -1), // 0s is none, not the default
		Retention:    cc.Inbox.Retention,
	}
}

func broker(b config.Broker) consumer.Broker {
	return consumer.Broker{Credentials: func() ([]string, *tls.Config, error) {
		var password *string
		if b.PasswordFile != "" {
			s, err := config.ReadSecret(b.PasswordFile)
			if err != nil {
				return nil, nil, fmt.Errorf("broker.password_file: %w", err)
			}
			p := s.Reveal()
			password = &p
		}
		urls := make([]string, 0, len(b.Addresses()))
		for _, addr := range b.Addresses() {
			u, err := addr.Parse()
			if err != nil {
				return nil, nil, fmt.Errorf("broker.url: %w", err)
			}
			if password != nil {
				u.User = url.UserPassword(u.User.Username(), *password)
			}
			urls = append(urls, u.String())
		}
		t, err := tlsConfig(b.TLS)
		if err != nil {
			return nil, nil, fmt.Errorf("broker.tls: %w", err)
		}
		return urls, t, nil
	}}
}

// tlsConfig reads the files; nil where there are none.
func tlsConfig(t config.TLS) (*tls.Config, error) {
	if t == (config.TLS{}) {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if t.CAFile != "" {
		pem, err := os.ReadFile(t.CAFile)
		if err != nil {
			return nil, err
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s holds no certificate in PEM form", t.CAFile)
		}
	}
	if t.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		if err != nil {
			return nil, err
		}
		c.Certificates = []tls.Certificate{cert}
	}
	return c, nil
}

func consumerOptions(c config.Config, cc config.Consumer) consumer.Options {
	least, most := cc.PrefetchBounds()
	o := consumer.Options{
		Broker:        broker(c.Broker),
		Consumer:      cc.Name,
		Queue:         cc.Queue,
		Prefetch:      least,
		MaxPrefetch:   most,
		Steady:        cc.Concurrency == 1, // who wants that wants order too
		MaxBytes:      c.InHandShare(maxInHand(c)),
		BodySize:      int64(cc.MaxBody),
		DeliveryLimit: cc.DeliveryLimit,
		Retention:     c.Store.Retention,
		Grace:         c.ShutdownTimeout,
		EmbeddedStore: isEmbedded(c) && cc.Inbox.URL.IsZero(),
	}
	if cc.Declare.Type != "" {
		o.Declare = &consumer.Declare{Type: cc.Declare.Type, Arguments: inbox.Table(cc.Declare.Arguments)}
	}
	return o
}

// maxInHand is the room for messages in hand in bytes, over all consumers.
func maxInHand(c config.Config) int64 {
	if c.MaxInHand != config.SizeAuto {
		return int64(c.MaxInHand)
	}
	return autoInHand(memoryLimit())
}

func forwardOptions(cc config.Consumer) (forward.Options, error) {
	status, err := forward.ParseStatusOverrides(cc.Forward.Status)
	return forward.Options{
		ConsumerName:   cc.Name,
		URL:            cc.Forward.URL.Reveal(),
		HealthURL:      cc.Forward.HealthURL.Reveal(),
		Timeout:        cc.Forward.Timeout,
		Concurrency:    cc.Concurrency,
		IdempotencyKey: forward.KeyFormat(cc.Forward.IdempotencyKey),
		ContentType:    cc.Forward.ContentType,
		Status:         status,
		TokenFile:      cc.Forward.TokenFile,
		TLS:            forward.TLSFiles(cc.Forward.TLS),
	}, err
}

func identity(cc config.Consumer) inbox.Identity {
	id := inbox.Identity{
		Fingerprint:        inbox.FingerprintMode(cc.Fingerprint.Mode),
		FingerprintPointer: cc.Fingerprint.Pointer,
	}
	for _, parts := range cc.MessageID {
		var sources []inbox.Source
		for _, s := range parts {
			sources = append(sources, inbox.Source{Kind: inbox.SourceKind(s.Kind), Arg: s.Arg})
		}
		id.Sources = append(id.Sources, sources)
	}
	return id
}

func missingID(word string) inbox.MissingIDPolicy {
	switch word {
	case config.OnMissingIDForward:
		return inbox.ForwardMissingID
	case config.OnMissingIDReject:
		return inbox.RejectMissingID
	default:
		return inbox.ParkMissingID
	}
}

func retry(r config.Retry) inbox.Retry {
	return inbox.Retry{Initial: r.Initial, Max: r.Max, MaxAttempts: r.MaxAttempts, Hold: r.Hold}
}

func publisherOptions(c config.Config, cc config.Consumer) consumer.PublisherOptions {
	return consumer.PublisherOptions{
		Broker: broker(c.Broker), Name: cc.Name, Exchange: cc.Park.Exchange, RoutingKey: cc.Park.RoutingKey,
	}
}

// parker keeps parked messages at the broker, and in the store what the broker
// can never take.
type parker struct {
	*consumer.Publisher
	store inbox.Parker
}

func (p parker) Park(ctx context.Context, m *inbox.ParkedMessage) error {
	err := p.Publisher.Park(ctx, m)
	if errors.Is(err, consumer.ErrBodyTooLarge) {
		return p.store.Park(ctx, m)
	}
	return err
}

// errNoConfig is the answer to a command without a configuration file.
var errNoConfig = errors.New("-c FILE is missing: name the configuration file")
