package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

const (
	orderCount     = 1000
	duplicateCount = 100
)

// order is what a web shop might publish when an order is paid.
type order struct {
	OrderID  string    `json:"order_id"`
	Customer string    `json:"customer"`
	Email    string    `json:"email"`
	Items    []item    `json:"items"`
	Amount   int       `json:"amount"` // in cents
	Currency string    `json:"currency"`
	PaidAt   time.Time `json:"paid_at"`
}

type item struct {
	SKU      string `json:"sku"`
	Name     string `json:"name"`
	Quantity int    `json:"quantity"`
	Price    int    `json:"price"` // of one, in cents
}

var (
	firstNames = []string{"Ada", "Björn", "Chidi", "Dolores", "Elif", "Fatima", "Grace", "Hiro", "Inês", "Jürgen", "Katya", "Liam"}
	lastNames  = []string{"Okafor", "Lindqvist", "Moreau", "Tanaka", "García", "Novák", "Smith", "Yılmaz", "Costa", "Weber"}
	catalogue  = []struct {
		sku, name string
		cents     int
	}{
		{"MUG-BLU-350", "Mug, blue, 350 ml", 1290},
		{"TEE-BLK-M", "T-shirt, black, M", 2490},
		{"NBK-A5-DOT", "Notebook A5, dotted", 890},
		{"PEN-GEL-07", "Gel pen 0.7 mm", 245},
		{"LMP-DSK-01", "Desk lamp", 4999},
		{"CBL-USBC-2M", "USB-C cable, 2 m", 1450},
	}
)

// message is one order, ready to be published.
type message struct {
	id   string
	body []byte
}

// makeOrders makes n different orders, the same ones for the same seed.
func makeOrders(n int, seed uint64) ([]message, error) {
	rng := rand.New(rand.NewPCG(seed, seed))
	day := time.Date(2026, 3, 2, 8, 0, 0, 0, time.UTC)
	messages := make([]message, 0, n)
	for i := range n {
		o := order{
			OrderID:  fmt.Sprintf("2026-%06d", 100_001+i),
			Currency: "EUR",
			PaidAt:   day.Add(time.Duration(i) * 7 * time.Second),
		}
		first, last := firstNames[rng.IntN(len(firstNames))], lastNames[rng.IntN(len(lastNames))]
		o.Customer = first + " " + last
		o.Email = fmt.Sprintf("customer%04d@shop.example", rng.IntN(10_000))
		for range 1 + rng.IntN(3) {
			p := catalogue[rng.IntN(len(catalogue))]
			quantity := 1 + rng.IntN(3)
			o.Amount += quantity * p.cents
			o.Items = append(o.Items, item{p.sku, p.name, quantity, p.cents})
		}
		body, err := json.Marshal(o)
		if err != nil {
			return nil, fmt.Errorf("writing order %s: %w", o.OrderID, err)
		}
		messages = append(messages, message{id: uuid(rng), body: body})
	}
	return messages, nil
}

func uuid(rng *rand.Rand) string {
	a, b := rng.Uint64(), rng.Uint64()
	return fmt.Sprintf("%08x-%04x-4%03x-%04x-%012x",
		a>>32, a>>16&0xffff, a&0xfff, b>>48&0x3fff|0x8000, b&0xffffffffffff)
}

// withDuplicates returns the messages in the order of publishing, with copies of
// some of them put in later: half of the copies right behind, as after a
// producer's lost confirm, half anywhere later, as after a replay.
func withDuplicates(messages []message, copies int, seed uint64) []message {
	type placed struct {
		at float64
		m  message
	}
	rng := rand.New(rand.NewPCG(seed, ^seed))
	n := len(messages)
	all := make([]placed, 0, n+copies)
	for i, m := range messages {
		all = append(all, placed{float64(i), m})
	}
	for i, original := range rng.Perm(n)[:copies] {
		behind := 0.5 + float64(rng.IntN(5))
		if i%2 == 1 {
			behind = 0.5 + float64(rng.IntN(n-original))
		}
		all = append(all, placed{float64(original) + behind, messages[original]})
	}
	slices.SortStableFunc(all, func(a, b placed) int { return cmp.Compare(a.at, b.at) })
	published := make([]message, 0, len(all))
	for _, p := range all {
		published = append(published, p.m)
	}
	return published
}
