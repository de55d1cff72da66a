package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// tap is a proxy before the broker that reads along: it knows when each message
// was acknowledged, whatever program the acknowledgement comes from.
type tap struct {
	addr     string
	target   string
	listener net.Listener
	wg       sync.WaitGroup

	mu        sync.Mutex
	conns     []net.Conn
	latencies []int64 // publish to acknowledgement, in nanoseconds
}

func newTap(target string) (*tap, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	t := &tap{addr: ln.Addr().String(), target: target, listener: ln}
	t.wg.Go(t.accept)
	return t, nil
}

func (t *tap) close() {
	_ = t.listener.Close()
	t.mu.Lock()
	for _, c := range t.conns {
		_ = c.Close()
	}
	t.mu.Unlock()
	t.wg.Wait()
}

func (t *tap) taken() []int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]int64(nil), t.latencies...)
}

func (t *tap) accept() {
	for {
		client, err := t.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", t.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		t.mu.Lock()
		t.conns = append(t.conns, client, server)
		t.mu.Unlock()
		w := &wire{tap: t, channels: map[uint16]*tappedChannel{}}
		t.wg.Go(func() { pass(client, server, len("AMQP\x00\x00\x09\x01"), w.fromClient) })
		t.wg.Go(func() { pass(server, client, 0, w.fromServer) })
	}
}

// The parts of AMQP 0-9-1 that the tap understands.
const (
	frameMethod  = 1
	frameBody    = 3
	classBasic   = 60
	basicDeliver = 60
	basicAck     = 80
)

// wire is one connection.
type wire struct {
	tap      *tap
	mu       sync.Mutex
	channels map[uint16]*tappedChannel
}

type tappedChannel struct {
	arriving uint64           // tag of the delivery whose body comes next
	pending  map[uint64]int64 // tag to time of publishing
}

// pass copies frames from one side to the other and shows each to see. It
// closes both sides at the end.
func pass(from, to net.Conn, preamble int, see func(kind byte, channel uint16, payload []byte)) {
	defer from.Close()
	defer to.Close()
	in := bufio.NewReaderSize(from, 64<<10)
	if _, err := io.CopyN(to, in, int64(preamble)); err != nil {
		return
	}
	var frame []byte
	for {
		header, err := in.Peek(7)
		if err != nil {
			return
		}
		size := int(binary.BigEndian.Uint32(header[3:]))
		if size > 1<<24 {
			return // not a frame
		}
		if total := 7 + size + 1; cap(frame) < total {
			frame = make([]byte, total)
		}
		frame = frame[:7+size+1]
		if _, err := io.ReadFull(in, frame); err != nil {
			return
		}
		// Seen before it is sent on, or an acknowledgement could overtake the
		// note of its delivery.
		see(frame[0], binary.BigEndian.Uint16(frame[1:]), frame[7:7+size])
		if _, err := to.Write(frame); err != nil {
			return
		}
	}
}

func (w *wire) channel(id uint16) *tappedChannel {
	c := w.channels[id]
	if c == nil {
		c = &tappedChannel{pending: map[uint64]int64{}}
		w.channels[id] = c
	}
	return c
}

func (w *wire) fromServer(kind byte, channel uint16, payload []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case kind == frameMethod && isMethod(payload, basicDeliver):
		if tag, err := deliveryTag(payload); err == nil {
			w.channel(channel).arriving = tag
		}
	case kind == frameBody:
		c := w.channel(channel)
		if at, ok := publishedAt(payload); ok && c.arriving != 0 {
			c.pending[c.arriving] = at
		}
		c.arriving = 0
	}
}

func (w *wire) fromClient(kind byte, channel uint16, payload []byte) {
	if kind != frameMethod || !isMethod(payload, basicAck) || len(payload) < 13 {
		return
	}
	now := time.Now().UnixNano()
	tag, multiple := binary.BigEndian.Uint64(payload[4:]), payload[12]&1 != 0
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.channel(channel)
	var done []int64
	for pending, at := range c.pending {
		if pending == tag || multiple && pending <= tag {
			done = append(done, now-at)
			delete(c.pending, pending)
		}
	}
	w.tap.mu.Lock()
	w.tap.latencies = append(w.tap.latencies, done...)
	w.tap.mu.Unlock()
}

func isMethod(payload []byte, method uint16) bool {
	return len(payload) >= 4 && binary.BigEndian.Uint16(payload) == classBasic &&
		binary.BigEndian.Uint16(payload[2:]) == method
}

// deliveryTag reads it from a basic.deliver: it follows the consumer tag.
func deliveryTag(payload []byte) (uint64, error) {
	if len(payload) < 5 {
		return 0, errors.New("too short")
	}
	at := 5 + int(payload[4])
	if len(payload) < at+8 {
		return 0, errors.New("too short")
	}
	return binary.BigEndian.Uint64(payload[at:]), nil
}
