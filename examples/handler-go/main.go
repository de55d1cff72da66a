// Command handler-go is the smallest service that is safe behind inboxd: it commits
// the Idempotency-Key and its own change in one transaction.
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	_ "modernc.org/sqlite"
)

// orders has no unique key on purpose: an order that is taken twice shows.
const schema = `
CREATE TABLE IF NOT EXISTS inbox (consumer TEXT NOT NULL, message_id TEXT NOT NULL, fingerprint TEXT NOT NULL,
	PRIMARY KEY (consumer, message_id));
CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, order_id TEXT NOT NULL, customer TEXT NOT NULL,
	amount INTEGER NOT NULL);`

type order struct {
	OrderID  string `json:"order_id"`
	Customer string `json:"customer"`
	Amount   int64  `json:"amount"` // in cents
}

var errOtherBody = errors.New("this key was used with another body")

type service struct {
	db       *sql.DB
	requests atomic.Int64
	inFlight sync.Map // keys
}

func open(path string) (*service, error) {
	db, err := sql.Open("sqlite", path+"?_txlock=immediate&_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1) // SQLite has one writer anyway
	if _, err := db.Exec(schema); err != nil {
		return nil, errors.Join(fmt.Errorf("creating the tables: %w", err), db.Close())
	}
	return &service{db: db}, nil
}

func (s *service) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /messages", s.message)
	mux.HandleFunc("GET /stats", s.stats)
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	return mux
}

func (s *service) message(w http.ResponseWriter, r *http.Request) {
	s.requests.Add(1)
	var o order
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&o)
	key, consumer := r.Header.Get("Idempotency-Key"), r.Header.Get("Inbox-Consumer")
	if err != nil || o.OrderID == "" || o.Amount < 0 || key == "" {
		http.Error(w, "needs an Idempotency-Key and an order with order_id and amount", http.StatusBadRequest)
		return
	}
	busy := consumer + "\x00" + key
	if _, running := s.inFlight.LoadOrStore(busy, true); running {
		http.Error(w, "this key is being processed", http.StatusConflict)
		return
	}
	defer s.inFlight.Delete(busy)
	switch err := s.take(r.Context(), consumer, key, r.Header.Get("Inbox-Fingerprint"), o); {
	case errors.Is(err, errOtherBody):
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// take commits the key and the order together. A known key is a success too.
func (s *service) take(ctx context.Context, consumer, key, fingerprint string, o order) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // does nothing after Commit
	var known string
	err = tx.QueryRowContext(ctx, `SELECT fingerprint FROM inbox WHERE consumer = ? AND message_id = ?`, consumer, key).Scan(&known)
	switch {
	case err == nil && known != fingerprint:
		return errOtherBody
	case err == nil:
		return nil
	case !errors.Is(err, sql.ErrNoRows):
		return err
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO inbox VALUES (?, ?, ?)`, consumer, key, fingerprint); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO orders (order_id, customer, amount) VALUES (?, ?, ?)`, o.OrderID, o.Customer, o.Amount); err != nil {
		return err
	}
	return tx.Commit()
}

// stats tells how often we were asked and how many orders came of it.
func (s *service) stats(w http.ResponseWriter, r *http.Request) {
	var effects int64
	if err := s.db.QueryRowContext(r.Context(), `SELECT count(*) FROM orders`).Scan(&effects); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]int64{"requests": s.requests.Load(), "effects": effects})
}

func main() {
	listen := flag.String("listen", "127.0.0.1:8080", "address")
	path := flag.String("db", "orders.db", "SQLite file with the orders and the inbox")
	flag.Parse()
	if err := serve(*listen, *path); err != nil {
		fmt.Fprintln(os.Stderr, "handler-go:", err)
		os.Exit(1)
	}
}

func serve(listen, path string) error {
	s, err := open(path)
	if err != nil {
		return err
	}
	defer s.db.Close()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	server := &http.Server{Addr: listen, Handler: s.routes(), ReadHeaderTimeout: 5 * time.Second}
	stopped := make(chan error, 1)
	context.AfterFunc(ctx, func() { stopped <- server.Shutdown(context.Background()) })
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-stopped // requests in flight have ended
}
