package postgres

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/inboxd/inboxd/internal/inbox"
	"github.com/inboxd/inboxd/internal/store"
)

// state returns the SQLSTATE, "" where the server has not answered.
func state(err error) string {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// isAnswer tells what the store says from failures of it.
func isAnswer(err error) bool {
	return errors.Is(err, inbox.ErrNotFound) || errors.Is(err, pgx.ErrNoRows)
}

func unexpected(err error) error {
	if isAnswer(err) {
		return nil
	}
	return err
}

// spoilt reports whether the connection must not be used again: nobody knows its
// state, or its server will not take our writes.
func spoilt(err error) bool {
	if isAnswer(err) {
		return false
	}
	code := state(err)
	switch {
	case code == "":
		return true
	case code == "57014": // took too long: the server has answered, and opening new sessions would only add load
		return false
	}
	switch code[:2] {
	case "08", // connection exception
		"57",       // shutting down, starting up
		"25",       // read-only: a standby now
		"53", "58", // out of resources, system error
		"XX", // internal error
		"0A", // cached plan of a table that has changed
		"26": // prepared statement that is not there: a pooler
		return true
	}
	return code == "42P05" // prepared statement that is there already: a pooler
}

// repeatable reports whether the same call may well succeed on another
// connection, or at another moment.
func repeatable(err error) bool {
	switch state(err) {
	case "40001", "40P01": // serialization failure, deadlock
		return true
	case "53100": // disk full: at once is no use
		return false
	default:
		return spoilt(err)
	}
}

// ofTheData reports whether the server refuses what it was given, and will
// refuse it again.
func ofTheData(err error) bool {
	code := state(err)
	return len(code) == 5 && (code[:2] == "22" || code[:2] == "23" || code[:2] == "54")
}

// setupError marks the errors of Open that a restart does not cure.
func setupError(err error) error {
	if err == nil || errors.Is(err, store.ErrSetup) {
		return err
	}
	var remedy string
	switch code := state(err); {
	case code == "":
		return err
	case code[:2] == "28":
		remedy = "check user and password"
	case code == "3D000":
		remedy = "create the database"
	case code == "42501":
		remedy = "grant the user CREATE on the database for the first start, or apply the output of `inboxd schema ledger` as its owner"
	default:
		return err
	}
	return fmt.Errorf("%w: %w: %s", store.ErrSetup, err, remedy)
}
