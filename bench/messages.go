package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"
)

// messageID is the message ID of message n: a UUID of version 4 in shape and in
// sort order, which is the hard case for an index, with n as its last group.
func messageID(n int) string {
	h := mix(uint64(n))
	return fmt.Sprintf("%08x-%04x-4%03x-8%03x-%012d", h>>32, h>>16&0xffff, h>>4&0xfff, h&0xfff, n)
}

// messageNumber is the inverse of messageID.
func messageNumber(id []byte) (int, bool) {
	if len(id) != 36 {
		return 0, false
	}
	n, err := strconv.Atoi(string(id[24:]))
	return n, err == nil && n >= 0
}

// mix is the finaliser of SplitMix64.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// schedule is the order in which messages are published, by number. A number
// that appears again is a duplicate.
func schedule(total int, duplicates float64) (order []int, unique int) {
	rng := rand.New(rand.NewPCG(1, 2)) // the same for every run
	unique = total - int(float64(total)*duplicates)
	order = make([]int, 0, total)
	next := 0
	for len(order) < total {
		left, dups := total-len(order), total-len(order)-(unique-next)
		if next > 0 && rng.IntN(left) < dups {
			// Most duplicates follow within seconds, some much later.
			back := 1 + rng.IntN(min(next, 2000))
			if rng.IntN(4) == 0 {
				back = 1 + rng.IntN(next)
			}
			order = append(order, next-back)
			continue
		}
		order = append(order, next)
		next++
	}
	return order, unique
}

const stampLength = 20

// body makes the body of message n: a JSON object of exactly size bytes where
// that is possible. The same n gives the same body, as a resent message has it.
func body(n, size int) []byte {
	b := make([]byte, 0, size)
	b = fmt.Appendf(b, `{"order":%q,"customer":%d,"total":"%d.%02d","currency":"EUR","note":"`,
		messageID(n), 10000+n%7919, n%900, n%100)
	for len(b) < size-2 {
		b = append(b, "abcdefghijklmnopqrstuvwxyz012345"[(n+len(b)*7)%32])
	}
	return append(b, `"}`...)
}

// stampedBody is a body that begins with the time of its publishing.
func stampedBody(at time.Time, n, size int) []byte {
	b := fmt.Appendf(nil, "%0*d ", stampLength, at.UnixNano())
	return append(b, body(n, max(0, size-len(b)))...)
}

// publishedAt reads the stamp of stampedBody.
func publishedAt(body []byte) (int64, bool) {
	if len(body) <= stampLength || body[stampLength] != ' ' {
		return 0, false
	}
	at, err := strconv.ParseInt(string(bytes.TrimLeft(body[:stampLength], "0")), 10, 64)
	return at, err == nil
}
