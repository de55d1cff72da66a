package consumer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// dialer opens connections to the nodes of one broker in turn. It belongs to
// one goroutine at a time.
type dialer struct {
	broker Broker
	name   string // shown by the broker's tools
	// repaired, if set, is told of each header table that was repaired.
	repaired func(cut bool)
	// hand, if set, bounds the bodies that come in.
	hand *inHand

	next  int // index of the URL to dial next
	count int // how many URLs there were last time
}

// connection is an open AMQP connection and the socket below it.
type connection struct {
	*amqp.Connection
	link *link
	addr string // host:port
}

// dial opens a connection to the next node. The library's DialConfig is not
// used: it would put TLS on top of our frame filter instead of below it.
func (d *dialer) dial(ctx context.Context) (*connection, error) {
	urls, tlsConfig, err := d.broker.Credentials()
	if err != nil {
		return nil, fmt.Errorf("%w: reading broker credentials: %w", errSetup, err)
	}
	if len(urls) == 0 {
		return nil, fmt.Errorf("%w: no broker URL", errSetup)
	}
	d.count = len(urls)
	i := d.next % len(urls)
	d.next = (i + 1) % len(urls)

	uri, err := amqp.ParseURI(urls[i])
	if err != nil {
		// The parser's error quotes the URL with its password.
		return nil, fmt.Errorf("%w: broker URL number %d cannot be parsed", errSetup, i+1)
	}
	addr := net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port))
	c, err := d.open(ctx, uri, addr, tlsConfig)
	if err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", addr, err)
	}
	d.next = i // it works: begin here next time
	return c, nil
}

func (d *dialer) open(ctx context.Context, uri amqp.URI, addr string, tlsConfig *tls.Config) (*connection, error) {
	timeout := d.broker.RPCTimeout
	nd := net.Dialer{
		Timeout:         timeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3},
	}
	raw, err := nd.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	conn := raw
	if uri.Scheme == "amqps" {
		if conn, err = handshake(ctx, raw, uri, tlsConfig, timeout); err != nil {
			_ = raw.Close()
			return nil, err
		}
	}
	sasl, err := mechanisms(uri)
	if err != nil {
		_ = raw.Close()
		return nil, err
	}

	l := newLink(conn, raw, timeout, d.repaired)
	if d.hand != nil {
		l.count(newIntake(d.hand))
	}
	stop := context.AfterFunc(ctx, l.sever)
	defer stop()
	var c *amqp.Connection
	begun := time.Now()
	err = l.watch(timeout, "AMQP handshake", func() (err error) {
		c, err = amqp.Open(l, d.config(uri, sasl))
		return err
	})
	if err != nil {
		l.sever()
		return nil, refineHandshake(ctx, l, time.Since(begun), err)
	}
	if d.hand != nil {
		// The library makes room for a body at once up to this size, and grows it
		// from there, with four times its size in left-overs for a large one. What
		// it reads was agreed upon before, and publish nothing is what it does here.
		c.Config.FrameSize = 0
	}
	return &connection{Connection: c, link: l, addr: addr}, nil
}

// config is built afresh for each dial: the library clears credentials in it.
// Recovery stays nil. With it a channel outlives its connection, delivery tags
// start again at 1, and a late ack removes a message that nobody processed.
func (d *dialer) config(uri amqp.URI, sasl []amqp.Authentication) amqp.Config {
	return amqp.Config{
		SASL:       sasl,
		Vhost:      uri.Vhost,
		ChannelMax: uri.ChannelMax,
		FrameSize:  131072,
		Heartbeat:  d.broker.Heartbeat, // whatever the URL says: 0 would hide a dead peer
		Locale:     "en_US",
		Properties: amqp.Table{
			"product":         "inboxd",
			"platform":        "Go",
			"connection_name": d.name,
		},
	}
}

func handshake(ctx context.Context, raw net.Conn, uri amqp.URI, config *tls.Config, timeout time.Duration) (net.Conn, error) {
	switch {
	case config != nil:
		config = config.Clone()
	case uri.CertFile != "" || uri.KeyFile != "" || uri.CACertFile != "":
		return nil, fmt.Errorf("%w: the TLS files of the broker belong in the TLS settings, not in its URL", errSetup)
	default:
		config = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if config.ServerName == "" {
		config.ServerName = uri.Host
		if uri.ServerName != "" {
			config.ServerName = uri.ServerName
		}
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn := tls.Client(raw, config)
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, fmt.Errorf("TLS handshake: %w", err)
	}
	return conn, nil
}

func mechanisms(uri amqp.URI) ([]amqp.Authentication, error) {
	if len(uri.AuthMechanism) == 0 {
		return []amqp.Authentication{uri.PlainAuth()}, nil
	}
	var sasl []amqp.Authentication
	for _, m := range uri.AuthMechanism {
		switch strings.ToUpper(m) {
		case "PLAIN":
			sasl = append(sasl, uri.PlainAuth())
		case "AMQPLAIN":
			sasl = append(sasl, uri.AMQPlainAuth())
		case "EXTERNAL":
			sasl = append(sasl, &amqp.ExternalAuth{})
		default:
			return nil, fmt.Errorf("%w: auth_mechanism %q is not supported", errSetup, m)
		}
	}
	return sasl, nil
}

// silentClose is less than the 3 s that RabbitMQ waits before it closes the
// socket on wrong credentials (the library does not ask for a word instead).
const silentClose = 2 * time.Second

// refineHandshake corrects the library's guess that a socket which breaks
// after the credentials were sent means wrong credentials: one that breaks at
// once, and not in an orderly way, is the network's doing or the broker's end.
func refineHandshake(ctx context.Context, l *link, took time.Duration, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var ae *amqp.Error
	if !errors.As(err, &ae) || ae != amqp.ErrCredentials || errors.Is(err, errNoAnswer) {
		return err
	}
	if took < silentClose && !l.sawEOF.Load() {
		return errors.New("AMQP handshake: the connection broke after the credentials were sent")
	}
	return err
}
