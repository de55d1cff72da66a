package shared

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// The environment of this test binary where it is the handler.
const (
	handlerVar  = "INBOXD_TEST_SHARED_HANDLER" // address to listen on
	databaseVar = "INBOXD_TEST_SHARED_DATABASE"
)

// serveOrders takes orders as the recipes do, and notes in the table requests
// when a key was there already, and since when.
func serveOrders() {
	db, err := pgxpool.New(context.Background(), os.Getenv(databaseVar))
	if err == nil {
		err = http.ListenAndServe(os.Getenv(handlerVar), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(3 * time.Millisecond) // room for a kill
			err := take(db, r, func(tx pgx.Tx, first bool) error {
				if first {
					return nil
				}
				_, err := tx.Exec(context.Background(), `insert into requests select message_id, 'duplicate', clock_timestamp() - created_at
					from inbox where consumer = $1 and message_id = $2`, r.Header.Get("Inbox-Consumer"), r.Header.Get("Idempotency-Key"))
				return err
			})
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
			}
		}))
	}
	fmt.Fprintln(os.Stderr, "handler:", err)
	os.Exit(1)
}

// take commits key and order together; more runs in the transaction.
func take(db *pgxpool.Pool, r *http.Request, more func(tx pgx.Tx, first bool) error) error {
	var o struct {
		OrderID  string `json:"order_id"`
		Customer string `json:"customer"`
		Amount   int    `json:"amount_cents"`
	}
	if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
		return err
	}
	ctx := context.WithoutCancel(r.Context())
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		var first bool
		if err := tx.QueryRow(ctx, `select inbox_claim($1, $2, $3)`, r.Header.Get("Inbox-Consumer"),
			r.Header.Get("Idempotency-Key"), r.Header.Get("Inbox-Fingerprint")).Scan(&first); err != nil {
			return err
		}
		if first {
			if _, err := tx.Exec(ctx, `insert into orders (order_id, customer, amount_cents) values ($1, $2, $3)`,
				o.OrderID, o.Customer, o.Amount); err != nil {
				return err
			}
		}
		return more(tx, first)
	})
}

// handler is a handler inside the test, that counts requests and duplicates.
type handler struct {
	*httptest.Server
	mu         sync.Mutex
	requests   map[string]int
	duplicates int
}

func newHandler(t *testing.T, db string, answer func(w http.ResponseWriter, r *http.Request, take func() error)) *handler {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), db)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	h := &handler{requests: map[string]int{}}
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		h.requests[r.Header.Get("Idempotency-Key")]++
		h.mu.Unlock()
		answer(w, r, func() error {
			return take(pool, r, func(_ pgx.Tx, first bool) error {
				if !first {
					h.mu.Lock()
					h.duplicates++
					h.mu.Unlock()
					return errDuplicate
				}
				return nil
			})
		})
	}))
	t.Cleanup(h.Close)
	return h
}

// most returns how many messages there were, and the most requests for one.
func (h *handler) most() (messages, requests int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, n := range h.requests {
		requests = max(requests, n)
	}
	return len(h.requests), requests
}

func failed(err error) bool { return err != nil && !errors.Is(err, errDuplicate) }
