package consumer

import "encoding/binary"

// UnreadableHeaders is the header that stands for entries of a header table
// that could not be read; its value says why.
const UnreadableHeaders = "x-inboxd-unreadable-headers"

// Limits of amqp091-go 1.16.
const (
	maxTableDepth = 32
	maxEntries    = 8192
)

// Why a table cannot be read.
const (
	tooDeep      = "nested too deeply"
	tooMany      = "too many entries"
	unknownType  = "unknown field type"
	cutShort     = "cut short"
	badFrameText = "content header cannot be read"
)

type verdict uint8

const (
	asIs    verdict = iota // nothing to do
	inPlace                // field types were replaced by equal ones, in place
	rebuilt                // entries were lost; the frame returned replaces it
)

// repairHeader examines a whole content header frame and makes it readable for
// amqp091-go. It allocates only where entries cannot be kept.
func repairHeader(frame []byte) (verdict, []byte) {
	payload := frame[frameStart : len(frame)-1]
	s := scanner{}
	from, to, ok := s.properties(payload)
	if !ok {
		return rebuilt, buildFrame(frame, nil, marker(badFrameText), nil)
	}
	bad := s.table(payload[from:to], 0)
	switch {
	case bad != "":
		// The frame may not grow beyond what was negotiated, which is 4096 bytes
		// at least; the properties around the table take 2.6 KiB at most.
		mark := marker(bad)
		entries := s.readable(payload[from:to], max(to-from, 1024)-len(mark))
		return rebuilt, buildFrame(frame, payload[14:from-4], append(entries, mark...), payload[to:])
	case s.patched:
		return inPlace, nil
	default:
		return asIs, nil
	}
}

// buildFrame returns frame with other properties: those before the table, the
// table's entries, those behind it. Without properties around the table, it is
// the only one.
func buildFrame(frame, before, entries, after []byte) []byte {
	const fixed = 14 // class, weight, body size, flags
	size := fixed + len(before) + 4 + len(entries) + len(after)
	out := make([]byte, 0, frameStart+size+1)
	out = append(out, frame[:3]...)
	out = binary.BigEndian.AppendUint32(out, uint32(size))
	payload := frame[frameStart : len(frame)-1]
	head := make([]byte, fixed)
	copy(head, payload)
	if before == nil && after == nil {
		binary.BigEndian.PutUint16(head[12:], flagHeaders)
	}
	out = append(out, head...)
	out = append(out, before...)
	out = binary.BigEndian.AppendUint32(out, uint32(len(entries)))
	out = append(out, entries...)
	out = append(out, after...)
	return append(out, frame[len(frame)-1])
}

func marker(why string) []byte {
	b := append([]byte{byte(len(UnreadableHeaders))}, UnreadableHeaders...)
	b = append(b, 'S')
	b = binary.BigEndian.AppendUint32(b, uint32(len(why)))
	return append(b, why...)
}

// Property flags, in the order of the properties.
const (
	flagContentType     = 1 << 15
	flagContentEncoding = 1 << 14
	flagHeaders         = 1 << 13
	flagDeliveryMode    = 1 << 12
	flagPriority        = 1 << 11
	flagTimestamp       = 1 << 6
	// The other properties behind the table are short strings.
	flagsShortBeforeTimestamp = 1<<10 | 1<<9 | 1<<8 | 1<<7
	flagsShortAfterTimestamp  = 1<<5 | 1<<4 | 1<<3 | 1<<2
)

// scanner walks the bytes of a content header.
type scanner struct {
	patched bool // a field type was replaced
}

// properties finds the entries of the header table: payload[from:to], both 0
// where there is none. ok is false where the properties do not fit the payload.
func (s *scanner) properties(payload []byte) (from, to int, ok bool) {
	if len(payload) < 14 {
		return 0, 0, false
	}
	flags := binary.BigEndian.Uint16(payload[12:])
	at := 14
	skip := func(n int) { at += n }
	short := func(mask uint16) {
		for bits := flags & mask; bits != 0; bits &= bits - 1 {
			if at < len(payload) {
				at += int(payload[at])
			}
			at++
		}
	}
	short(flagContentType | flagContentEncoding)
	if flags&flagHeaders != 0 {
		if at+4 > len(payload) {
			return 0, 0, false
		}
		from = at + 4
		size := uint64(binary.BigEndian.Uint32(payload[at:]))
		if size > uint64(len(payload)-from) {
			return 0, 0, false
		}
		to = from + int(size)
		at = to
	}
	if flags&flagDeliveryMode != 0 {
		skip(1)
	}
	if flags&flagPriority != 0 {
		skip(1)
	}
	short(flagsShortBeforeTimestamp)
	if flags&flagTimestamp != 0 {
		skip(8)
	}
	short(flagsShortAfterTimestamp)
	return from, to, at <= len(payload)
}

// table examines the entries of a table and returns what is wrong, or "".
func (s *scanner) table(b []byte, depth int) (bad string) {
	for n := 0; len(b) > 0; n++ {
		size, bad := s.entry(b, depth)
		if bad != "" {
			return bad
		}
		if n == maxEntries {
			return tooMany
		}
		b = b[size:]
	}
	return ""
}

func (s *scanner) array(b []byte, depth int) (bad string) {
	for n := 0; len(b) > 0; n++ {
		size, bad := s.value(b, depth)
		if bad != "" {
			return bad
		}
		if n == maxEntries {
			return tooMany
		}
		b = b[size:]
	}
	return ""
}

// entry examines the name and the value that b begins with. size is their
// length, 0 where that cannot be told.
func (s *scanner) entry(b []byte, depth int) (size int, bad string) {
	name := 1 + int(b[0])
	if name >= len(b) {
		return 0, cutShort
	}
	size, bad = s.value(b[name:], depth)
	if size > 0 {
		size += name
	}
	return size, bad
}

// value examines the value that b, which is not empty, begins with, and
// replaces field types that the library does not know by equal ones.
func (s *scanner) value(b []byte, depth int) (size int, bad string) {
	switch b[0] {
	case 'V':
		size = 1
	case 't', 'b', 'B':
		size = 2
	case 's', 'u', 'U':
		size = 3
	case 'I', 'i', 'f':
		size = 5
	case 'D':
		size = 6
	case 'l', 'L', 'd', 'T':
		size = 9
	case 'S', 'x', 'A', 'F':
		return s.sized(b, depth)
	default:
		return 0, unknownType
	}
	if size > len(b) {
		return 0, cutShort
	}
	switch b[0] {
	case 'L': // a signed 64-bit integer as the specification has it, and py-amqp
		b[0], s.patched = 'l', true
	case 'U': // a signed 16-bit integer as the specification has it
		b[0], s.patched = 's', true
	}
	return size, ""
}

func (s *scanner) sized(b []byte, depth int) (size int, bad string) {
	if len(b) < 5 {
		return 0, cutShort
	}
	n := uint64(binary.BigEndian.Uint32(b[1:]))
	if n > uint64(len(b)-5) {
		return 0, cutShort
	}
	size = 5 + int(n)
	content := b[5:size]
	switch {
	case b[0] == 'S' || b[0] == 'x':
		return size, ""
	case depth+1 > maxTableDepth:
		return size, tooDeep
	case b[0] == 'A':
		return size, s.array(content, depth+1)
	default:
		return size, s.table(content, depth+1)
	}
}

// readable returns a copy of the entries that can be read, up to limit bytes
// and leaving room for the marker. It skips bad ones as long as their length is
// known.
func (s *scanner) readable(b []byte, limit int) []byte {
	var out []byte
	for n := 0; len(b) > 0 && n < maxEntries-1; {
		size, bad := s.entry(b, 0)
		if size == 0 || bad == "" && len(out)+size > limit {
			break
		}
		if bad == "" {
			out = append(out, b[:size]...)
			n++
		}
		b = b[size:]
	}
	return out
}
