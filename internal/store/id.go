package store

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"sync"
	"time"
)

var lastID struct {
	sync.Mutex
	stamp uint64
}

// NewID returns a UUID of version 7. IDs sort as text by age; those of one
// process strictly in the order of the calls.
func NewID() string {
	var b [16]byte
	_, _ = rand.Read(b[8:]) // never fails: it crashes the program instead

	// 48 bits of milliseconds and 12 of their fraction: about a quarter of a
	// microsecond, which two calls may share.
	now := time.Now()
	stamp := uint64(now.UnixMilli())<<12 | uint64(now.Nanosecond()%1e6)<<12/1e6
	lastID.Lock()
	stamp = max(stamp, lastID.stamp+1)
	lastID.stamp = stamp
	lastID.Unlock()

	binary.BigEndian.PutUint64(b[:8], stamp>>12<<16|7<<12|stamp&0xfff)
	b[8] = b[8]&0x3f | 0x80

	var s [36]byte
	hex.Encode(s[0:8], b[0:4])
	hex.Encode(s[9:13], b[4:6])
	hex.Encode(s[14:18], b[6:8])
	hex.Encode(s[19:23], b[8:10])
	hex.Encode(s[24:36], b[10:16])
	s[8], s[13], s[18], s[23] = '-', '-', '-', '-'
	return string(s[:])
}
