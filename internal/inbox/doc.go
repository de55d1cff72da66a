// Package inbox holds the vocabulary of inboxd and the way of one message:
// identify, join, claim, forward, record, settle. It declares the interfaces
// that this way needs and knows nothing of AMQP, HTTP or SQL; the packages
// beside it implement them.
package inbox
