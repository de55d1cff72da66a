package consumer

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// fakeBroker is a peer that says what a real broker cannot be made to say. It
// answers what a session asks for and delivers what the test gives it.
type fakeBroker struct {
	addr string
	// consumed gets each connection whose consumer was confirmed, and its tag.
	consumed chan *fakeConn
}

type fakeConn struct {
	net.Conn
	tag  string
	next uint64 // delivery tag

	mu      sync.Mutex
	settled []string // "ack 3 multiple", "nack 4", "reject 5"
}

func startFakeBroker(t testing.TB) *fakeBroker {
	return serveFake(t, func(l net.Listener) net.Listener { return l })
}

func serveFake(t testing.TB, wrap func(net.Listener) net.Listener) *fakeBroker {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l = wrap(l)
	f := &fakeBroker{addr: l.Addr().String(), consumed: make(chan *fakeConn, 100)}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go f.serve(&fakeConn{Conn: c})
		}
	}()
	return f
}

func (f *fakeBroker) url() string { return "amqp://guest:guest@" + f.addr + "/" }

func (f *fakeBroker) serve(c *fakeConn) {
	defer c.Close()
	if _, err := io.ReadFull(c, make([]byte, 8)); err != nil {
		return
	}
	// The server properties use a field type that the filter must not touch.
	props := table("product", 'S', longstr("fake"), "n", 'I', []byte{0, 0, 0, 1})
	c.method(0, 10, 10, []byte{0, 9}, longstr(string(props)), longstr("PLAIN"), longstr("en_US"))
	for {
		typ, channel, payload, err := readFrame(c)
		if err != nil {
			return
		}
		if typ != frameMethod {
			continue
		}
		class, method := binary.BigEndian.Uint16(payload), binary.BigEndian.Uint16(payload[2:])
		args := payload[4:]
		switch [2]uint16{class, method} {
		case [2]uint16{10, 11}:
			c.method(0, 10, 30, []byte{0, 10}, u32(131072), []byte{0, 10})
		case [2]uint16{10, 40}:
			c.method(0, 10, 41, []byte{0})
		case [2]uint16{10, 50}:
			c.method(0, 10, 51)
			return
		case [2]uint16{20, 10}:
			c.method(channel, 20, 11, longstr(""))
		case [2]uint16{20, 40}:
			c.method(channel, 20, 41)
		case [2]uint16{50, 10}:
			c.method(channel, 50, 11, shortstr("q"), u32(0), u32(0))
		case [2]uint16{60, 10}:
			c.method(channel, 60, 11)
		case [2]uint16{60, 20}:
			args = args[2:]
			args = args[1+int(args[0]):] // queue
			c.tag = string(args[1 : 1+int(args[0])])
			c.method(channel, 60, 21, shortstr(c.tag))
			f.consumed <- c
		case [2]uint16{60, 30}:
			c.note("cancel", nil)
			c.method(channel, 60, 31, shortstr(c.tag))
		case [2]uint16{60, 80}:
			c.note("ack", args)
		case [2]uint16{60, 120}:
			c.note("nack", args)
		case [2]uint16{60, 90}:
			c.note("reject", args)
		}
	}
}

func (c *fakeConn) note(verb string, args []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if args == nil {
		c.settled = append(c.settled, verb)
		return
	}
	tag := binary.BigEndian.Uint64(args)
	s := verb + " " + string('0'+rune(tag%10))
	if verb == "ack" && args[8]&1 != 0 {
		s += " multiple"
	}
	c.settled = append(c.settled, s)
}

func (c *fakeConn) method(channel, class, method uint16, args ...[]byte) {
	p := binary.BigEndian.AppendUint16(nil, class)
	p = binary.BigEndian.AppendUint16(p, method)
	_, _ = c.Write(frame(frameMethod, channel, append(p, bytes.Join(args, nil)...)))
}

// deliver sends one message with the given content header payload.
func (c *fakeConn) deliver(header []byte, body string) error {
	c.next++
	p := []byte{0, 60, 0, 60}
	p = append(p, shortstr(c.tag)...)
	p = binary.BigEndian.AppendUint64(p, c.next)
	p = append(p, 0) // not redelivered
	p = append(p, shortstr("")...)
	p = append(p, shortstr("q")...)
	b := frame(frameMethod, 1, p)
	b = append(b, frame(frameHeader, 1, header)...)
	if body != "" {
		b = append(b, frame(frameBody, 1, []byte(body))...)
	}
	_ = c.SetWriteDeadline(time.Now().Add(5 * time.Second))
	_, err := c.Write(b)
	return err
}

func readFrame(r io.Reader) (typ byte, channel uint16, payload []byte, err error) {
	var head [frameStart]byte
	if _, err = io.ReadFull(r, head[:]); err != nil {
		return
	}
	payload = make([]byte, binary.BigEndian.Uint32(head[3:])+1)
	if _, err = io.ReadFull(r, payload); err != nil {
		return
	}
	return head[0], binary.BigEndian.Uint16(head[1:]), payload[:len(payload)-1], nil
}

func frame(typ byte, channel uint16, payload []byte) []byte {
	b := []byte{typ}
	b = binary.BigEndian.AppendUint16(b, channel)
	b = binary.BigEndian.AppendUint32(b, uint32(len(payload)))
	b = append(b, payload...)
	return append(b, frameEnd)
}

func u32(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }

func shortstr(s string) []byte { return append([]byte{byte(len(s))}, s...) }

func longstr(s string) []byte { return append(u32(uint32(len(s))), s...) }

// table returns the entries of a header table: name, type, value bytes, ….
func table(parts ...any) []byte {
	var b []byte
	for i := 0; i < len(parts); i += 3 {
		b = append(b, shortstr(parts[i].(string))...)
		b = append(b, byte(parts[i+1].(rune)))
		b = append(b, parts[i+2].([]byte)...)
	}
	return b
}

// contentHeader returns the payload of a content header with content type,
// header table and message ID.
func contentHeader(entries []byte, messageID string, bodySize int) []byte {
	b := []byte{0, 60, 0, 0}
	b = binary.BigEndian.AppendUint64(b, uint64(bodySize))
	b = binary.BigEndian.AppendUint16(b, flagContentType|flagHeaders|1<<7)
	b = append(b, shortstr("text/plain")...)
	b = append(b, longstr(string(entries))...)
	return append(b, shortstr(messageID)...)
}
