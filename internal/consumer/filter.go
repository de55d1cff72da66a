package consumer

import (
	"encoding/binary"
	"io"
	"math"
)

// AMQP frames: type (1), channel (2), size (4), payload, end (1).
const (
	frameMethod    = 1
	frameHeader    = 2
	frameBody      = 3
	frameHeartbeat = 8

	frameStart = 7 // before the payload
	frameEnd   = 0xCE

	filterBuffer = 16 << 10
	// maxHeaderFrame is more than any frame_max we negotiate; the library
	// refuses what is larger before it reads it.
	maxHeaderFrame = 256 << 10
	directRead     = 4 << 10
)

// filter passes a broker's byte stream on to amqp091-go and repairs content
// headers on the way that the library cannot read. It would close the
// connection on them, and the broker would deliver the same message again to
// the next one: one such message stops a queue for good. Everything else passes
// unchanged.
type filter struct {
	src      io.Reader
	repaired func(cut bool) // may be nil
	intake   *intake        // may be nil: everything comes in

	buf   []byte
	r, w  int    // buf[r:w] was read and not handed on
	ready uint64 // bytes from r on, in buf or still to come, that may pass
	out   []byte // a rebuilt frame to hand on first
	strip uint64 // bytes of a body to leave out, in the frames to come
	drop  uint64 // bytes from r on, in buf or still to come, to leave out now
	err   error
}

func newFilter(src io.Reader, repaired func(cut bool)) *filter {
	return &filter{src: src, repaired: repaired, buf: make([]byte, filterBuffer)}
}

func (f *filter) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for {
		switch {
		case len(f.out) > 0:
			n := copy(p, f.out)
			f.out = f.out[n:]
			return n, nil
		case f.ready > 0 && f.r < f.w:
			n := copy(p[:clamp(len(p), f.ready)], f.buf[f.r:f.w])
			f.r += n
			f.ready -= uint64(n)
			return n, nil
		case f.ready >= directRead && len(p) >= directRead && f.err == nil:
			// The middle of a large body: no need to copy it twice.
			n, err := f.src.Read(p[:clamp(len(p), f.ready)])
			f.ready -= uint64(n)
			return n, err
		}
		if f.drop > 0 && f.r < f.w {
			n := clamp(f.w-f.r, f.drop)
			f.r += n
			f.drop -= uint64(n)
			continue
		}
		if f.ready == 0 && f.drop == 0 && f.look() {
			continue
		}
		if f.fill() {
			continue
		}
		if f.r == f.w || f.ready > 0 || f.drop > 0 {
			return 0, f.err
		}
		f.ready = math.MaxUint64 // the stream ends inside a frame: pass on what there is
	}
}

func clamp(n int, limit uint64) int {
	if uint64(n) > limit {
		return int(limit)
	}
	return n
}

// look examines the frames that begin in the buffer and sets ready or out. It
// reports false where more bytes are needed.
func (f *filter) look() bool {
	at := f.r
	for f.w-at >= frameStart {
		b := f.buf[at:f.w]
		size := uint64(binary.BigEndian.Uint32(b[3:]))
		length := frameStart + size + 1
		switch b[0] {
		case frameHeader:
			if size > maxHeaderFrame {
				break
			}
			if uint64(len(b)) < length {
				if at > f.r {
					return f.pass(at)
				}
				f.reserve(int(length))
				return false
			}
			frame := b[:length]
			switch verdict, built := repairHeader(frame); verdict {
			case asIs:
			case inPlace:
				f.report(false)
			case rebuilt:
				if at > f.r {
					return f.pass(at) // first what comes before it
				}
				f.admit(built, true)
				f.report(true)
				f.out = built
				f.r += len(frame)
				return true
			}
			if !f.admit(frame, at == f.r) {
				return f.pass(at) // before waiting
			}
		case frameBody:
			if f.strip == 0 {
				break
			}
			if at > f.r {
				return f.pass(at)
			}
			f.strip -= min(f.strip, size)
			f.drop = length
			return true
		case frameMethod, frameHeartbeat:
		default:
			f.ready = math.MaxUint64 // not AMQP, or not any more; the library says so
			return true
		}
		if uint64(len(b)) <= length {
			f.ready = uint64(at-f.r) + length
			return true
		}
		at += int(length)
	}
	return f.pass(at)
}

// admit decides about the body after a content header. Where it must not come in,
// the header says from now on that there is none. It reports false where there is
// nothing to decide before there is room and it may not wait for that: what came
// before the header has to be handed on first.
func (f *filter) admit(frame []byte, mayWait bool) bool {
	const bodySize = frameStart + 4 // after class and weight
	if f.intake == nil || len(frame) < bodySize+8 {
		return true
	}
	size := binary.BigEndian.Uint64(frame[bodySize:])
	v, _ := f.intake.admit(size)
	if v == bodyWaits && mayWait {
		v = f.intake.wait(size)
	}
	if v == bodyStripped {
		f.strip = size
		binary.BigEndian.PutUint64(frame[bodySize:], 0)
	}
	return v != bodyWaits
}

// pass lets everything before at pass.
func (f *filter) pass(at int) bool {
	f.ready = uint64(at - f.r)
	return f.ready > 0
}

func (f *filter) report(cut bool) {
	if f.repaired != nil {
		f.repaired(cut)
	}
}

// reserve makes room for n bytes from r on.
func (f *filter) reserve(n int) {
	if len(f.buf) < n {
		grown := make([]byte, n)
		f.w = copy(grown, f.buf[f.r:f.w])
		f.r, f.buf = 0, grown
	}
}

// fill reads once. It reports false where nothing came, with err set.
func (f *filter) fill() bool {
	if f.err != nil {
		return false
	}
	if f.r > 0 {
		f.w = copy(f.buf, f.buf[f.r:f.w])
		f.r = 0
	}
	for range 100 {
		n, err := f.src.Read(f.buf[f.w:])
		f.w += n
		f.err = err
		if n > 0 {
			return true
		}
		if err != nil {
			return false
		}
	}
	f.err = io.ErrNoProgress
	return false
}
