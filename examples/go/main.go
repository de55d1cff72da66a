// Command go takes orders behind inboxd: Go, pgx and net/http.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

type order struct {
	OrderID  string `json:"order_id"`
	Customer string `json:"customer"`
	Amount   *int64 `json:"amount_cents"`
}

// takeOrder commits the key and the order together; false: they were before.
func takeOrder(ctx context.Context, db *pgxpool.Pool, h http.Header, o order) (first bool, err error) {
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error { // commits, or rolls back on an error
		err := tx.QueryRow(ctx, `select inbox_claim($1, $2, $3)`, h.Get("Inbox-Consumer"),
			h.Get("Idempotency-Key"), h.Get("Inbox-Fingerprint")).Scan(&first)
		if err != nil || !first {
			return err
		}
		_, err = tx.Exec(ctx, `insert into orders (order_id, customer, amount_cents) values ($1, $2, $3)`,
			o.OrderID, o.Customer, o.Amount)
		return err
	})
	return first, err // only now it is committed
}

func message(db *pgxpool.Pool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var o order
		err := json.NewDecoder(r.Body).Decode(&o)
		if err != nil || o.OrderID == "" || o.Amount == nil || r.Header.Get("Idempotency-Key") == "" || r.Header.Get("Inbox-Consumer") == "" {
			w.WriteHeader(http.StatusBadRequest) // this message will never do: it is parked
			return
		}
		// Finish, whether or not somebody waits for the answer.
		first, err := takeOrder(context.WithoutCancel(r.Context()), db, r.Header, o)
		var pg *pgconn.PgError
		errors.As(err, &pg)
		switch {
		case pg != nil && pg.Code == "IB422": // the key was used for another body
			w.WriteHeader(http.StatusUnprocessableEntity)
		case pg != nil && (strings.HasPrefix(pg.Code, "22") || strings.HasPrefix(pg.Code, "23")): // the order's own data
			w.WriteHeader(http.StatusBadRequest)
		case err != nil: // sent again later
			w.WriteHeader(http.StatusInternalServerError)
		case first:
			w.Header().Set("Inbox-Outcome", "processed")
		default:
			w.Header().Set("Inbox-Outcome", "duplicate")
		}
	}
}

func main() {
	db, err := pgxpool.New(context.Background(), os.Getenv("DATABASE_URL"))
	if err == nil {
		http.Handle("POST /messages", message(db))
		http.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
		err = http.ListenAndServe("127.0.0.1:"+os.Getenv("PORT"), nil)
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
