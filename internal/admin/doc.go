// Package admin is what people and probes see of a running daemon: the health
// and metrics endpoints, the API over stored messages and records, and the
// page. It decides nothing about messages; every verb is a call of a Desk or of
// a function that the daemon hands over in Options.
package admin
