// Package config reads the configuration file: it fills in the defaults, parses
// strictly and checks every rule that needs no network. It knows nothing of the
// other packages; cmd turns a Config into their options.
package config

import "time"

// Config is the whole configuration. A Config that Parse or Load returned is
// valid. It holds no plain secret: URLs print without their passwords, whatever
// prints them.
type Config struct {
	Broker    Broker     `yaml:"broker"`
	Store     Store      `yaml:"store"`
	Consumers []Consumer `yaml:"consumers"`
	Metrics   Metrics    `yaml:"metrics"`
	Admin     Admin      `yaml:"admin"`
	// Readyz is what /readyz follows: ReadyzStarted or ReadyzStrict.
	Readyz string `yaml:"readyz"`
	// ShutdownTimeout bounds the wait for requests in flight at the end.
	ShutdownTimeout time.Duration `yaml:"shutdown_timeout"`
	// MaxInHand is how many bytes the bodies of messages in hand may have together,
	// over all consumers.
	MaxInHand AutoSize `yaml:"max_in_hand"`
	Log       Log      `yaml:"log"`
}

// The values of Config.Readyz.
const (
	ReadyzStarted = "started" // from the start until the drain
	ReadyzStrict  = "strict"  // as /consuming
)

// Broker says where RabbitMQ is.
type Broker struct {
	URL  URL   `yaml:"url"`  // empty where URLs is set
	URLs []URL `yaml:"urls"` // tried in turn
	// PasswordFile, where set, holds the password that replaces the one of the
	// URLs; it is to be read again at each dial (see ReadSecret).
	PasswordFile string `yaml:"password_file"`
	TLS          TLS    `yaml:"tls"`
	// ConsumerTimeout is what the broker is set to, 0 where it has none.
	ConsumerTimeout time.Duration `yaml:"consumer_timeout"`
}

// Addresses returns URLs, or URL where that is the one that is set.
func (b Broker) Addresses() []URL {
	if len(b.URLs) > 0 {
		return b.URLs
	}
	return []URL{b.URL}
}

// TLS names PEM files.
type TLS struct {
	CAFile   string `yaml:"ca_file"`   // instead of the system's authorities
	CertFile string `yaml:"cert_file"` // our certificate, with KeyFile
	KeyFile  string `yaml:"key_file"`
}

// Store says where records and parked messages are kept.
type Store struct {
	URL          URL           `yaml:"url"` // sqlite:PATH or postgres://…
	PasswordFile string        `yaml:"password_file"`
	Retention    time.Duration `yaml:"retention"`
	// Leases keep two replicas from forwarding one message at the same time.
	Leases string `yaml:"leases"`
}

// Consumer is one queue and its handler.
type Consumer struct {
	Name        string      `yaml:"name"` // half of the inbox key
	Queue       string      `yaml:"queue"`
	Declare     Declare     `yaml:"declare"`
	Concurrency int         `yaml:"concurrency"`
	Prefetch    Prefetch    `yaml:"prefetch"`
	MessageID   MessageID   `yaml:"message_id"`
	OnMissingID string      `yaml:"on_missing_id"`
	OnMismatch  string      `yaml:"on_mismatch"`
	Fingerprint Fingerprint `yaml:"fingerprint"`
	MaxBody     Size        `yaml:"max_body"`
	// DeliveryLimit is the queue's, DeliveryLimitAuto, or 0 for none.
	DeliveryLimit int     `yaml:"delivery_limit"`
	Forward       Forward `yaml:"forward"`
	Retry         Retry   `yaml:"retry"`
	Park          Park    `yaml:"park"`
	Inbox         Inbox   `yaml:"inbox"`
}

// The values of Store.Leases.
const (
	LeasesAuto   = "auto"   // while there is more than one daemon
	LeasesAlways = "always" // so that nobody waits for one that died alone
	LeasesNever  = "never"
)

// The values of Consumer.OnMissingID and Consumer.OnMismatch.
const (
	OnMissingIDPark    = "park"
	OnMissingIDForward = "forward"
	OnMissingIDReject  = "reject"

	OnMismatchPark = "park"
	OnMismatchAck  = "ack"
)

// DeliveryLimitAuto stands for what is known of the queue and its broker.
const DeliveryLimitAuto = -1

// Declare describes the queue to declare before consuming; with an empty Type
// the queue must exist. A declared queue is durable and never deleted by itself.
type Declare struct {
	Type      string    `yaml:"type"` // "", "quorum" or "classic"
	Arguments Arguments `yaml:"arguments"`
}

// Arguments are a queue's x-arguments; values are string, int64 or bool.
type Arguments map[string]any

// Forward says where the messages of a consumer go.
type Forward struct {
	URL            URL           `yaml:"url"`
	Timeout        time.Duration `yaml:"timeout"`
	HealthURL      URL           `yaml:"health_url"`
	IdempotencyKey string        `yaml:"idempotency_key"` // raw or quoted
	ContentType    string        `yaml:"content_type"`
	Status         Status        `yaml:"status"`
	TokenFile      string        `yaml:"token_file"`
	TLS            TLS           `yaml:"tls"`
}

// Retry says how failed requests are repeated.
type Retry struct {
	Initial     time.Duration `yaml:"initial"`
	Max         time.Duration `yaml:"max"`
	MaxAttempts int           `yaml:"max_attempts"`
	Hold        time.Duration `yaml:"hold"`
}

// Inbox is shared mode, which is on where URL is set.
type Inbox struct {
	URL          URL    `yaml:"url"`
	PasswordFile string `yaml:"password_file"`
	Table        string `yaml:"table"`
	Evidence     string `yaml:"evidence"` // require, warn or off
	// Grace is how long a row that is absent after a 2xx is waited for.
	Grace time.Duration `yaml:"grace"`
	// Retention deletes older rows; 0: the service does that itself.
	Retention time.Duration `yaml:"retention"`
}

// Metrics says where the read-only endpoints listen; "" is nowhere.
type Metrics struct {
	Listen string `yaml:"listen"`
}

// Admin says where page and API listen; "" is nowhere.
type Admin struct {
	Listen       string   `yaml:"listen"`
	TokenFile    string   `yaml:"token_file"`
	AllowedHosts []string `yaml:"allowed_hosts"`
}

// Log says what is logged, and how.
type Log struct {
	Level  string `yaml:"level"`  // debug, info, warn or error
	Format string `yaml:"format"` // json or text
}

// Default returns the configuration that an empty file stands for. It is not
// valid: consumers have to be named.
func Default() Config {
	return Config{
		Broker: Broker{
			URL:             NewURL("amqp://guest:guest@127.0.0.1:5672/"),
			ConsumerTimeout: 30 * time.Minute,
		},
		Store: Store{
			URL:       NewURL("sqlite:inboxd.db"),
			Retention: 7 * 24 * time.Hour,
			Leases:    LeasesAuto,
		},
		Metrics:         Metrics{Listen: ":9320"},
		Admin:           Admin{Listen: "127.0.0.1:9321"},
		Readyz:          ReadyzStarted,
		ShutdownTimeout: 25 * time.Second,
		Log:             Log{Level: "info", Format: "json"},
	}
}

// DefaultConsumer returns what every consumer begins with; Name, Queue and
// Forward.URL have no default.
func DefaultConsumer() Consumer {
	return Consumer{
		Concurrency:   16,
		Prefetch:      PrefetchAuto,
		MessageID:     MessageID{{{Kind: "property"}}},
		OnMissingID:   OnMissingIDPark,
		OnMismatch:    OnMismatchPark,
		Fingerprint:   Fingerprint{Mode: "body"},
		MaxBody:       16 << 20,
		DeliveryLimit: DeliveryLimitAuto,
		Forward:       Forward{Timeout: 30 * time.Second, IdempotencyKey: "raw"},
		Retry: Retry{
			Initial:     500 * time.Millisecond,
			Max:         30 * time.Second,
			MaxAttempts: 10,
			Hold:        10 * time.Minute,
		},
		Inbox: Inbox{Table: "inbox", Evidence: "require", Grace: 2 * time.Second},
	}
}
