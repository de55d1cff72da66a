package forward

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"strconv"
	"strings"
	"time"
)

// answerReader reads the answers on one connection.
type answerReader struct {
	in   *bufio.Reader
	long []byte // a line that is longer than the buffer of in
	left int    // bytes that the header may still have
}

func newAnswerReader(r io.Reader) answerReader {
	return answerReader{in: bufio.NewReaderSize(r, 4<<10)}
}

// framing is what the header says about the body and the connection.
type framing struct {
	minor   byte // of HTTP/1.
	length  int64
	chunked bool
	closes  bool
	stays   bool
}

// read reads one answer into r. It reports whether the connection is clean
// behind it: the answer is complete, nothing follows it, and the application
// keeps the connection open.
func (a *answerReader) read(r *reply, conn net.Conn, deadline time.Time) (clean bool) {
	if _, r.err = a.in.Peek(1); r.err != nil {
		return false
	}
	r.answered = true
	var f framing
	if f, r.err = a.head(r); r.err != nil {
		return false
	}
	complete := a.body(r, f, conn, deadline)
	closes := f.closes || f.minor == 0 && !f.stays
	return complete && !closes && a.in.Buffered() == 0
}

// head reads the header of the final answer, past informational ones.
func (a *answerReader) head(r *reply) (f framing, err error) {
	a.left = maxAnswer
	for {
		r.action, r.retryAfter, r.location = "", "", ""
		f = framing{length: -1}
		line, err := a.line()
		if err != nil {
			return f, err
		}
		if f.minor, r.status, err = parseStatus(line); err != nil {
			return f, err
		}
		if err := a.fields(r, &f); err != nil {
			return f, err
		}
		if r.status/100 != 1 || r.status == http.StatusSwitchingProtocols {
			return f, nil
		}
	}
}

// fields reads the header fields and takes what matters to us.
func (a *answerReader) fields(r *reply, f *framing) error {
	framed := false // the field before speaks of the body's length
	for {
		line, err := a.line()
		if err != nil {
			return err
		}
		if len(line) == 0 {
			return nil
		}
		if line[0] == ' ' || line[0] == '\t' { // the obsolete folding
			if framed {
				return errMalformed
			}
			continue
		}
		i := bytes.IndexByte(line, ':')
		if i <= 0 || line[i-1] == ' ' || line[i-1] == '\t' {
			return errMalformed
		}
		name, value := line[:i], bytes.Trim(line[i+1:], " \t")
		framed = false
		switch {
		case isName(name, "content-length"):
			framed = true
			err = f.setLength(value)
		case isName(name, "transfer-encoding"):
			framed = true
			err = f.setCoding(value)
		case isName(name, "connection"):
			f.setConnection(value)
		case isName(name, "inbox-action"):
			setFirst(&r.action, value)
		case isName(name, "retry-after"):
			setFirst(&r.retryAfter, value)
		case isName(name, "location"):
			setFirst(&r.location, value)
		}
		if err != nil {
			return err
		}
	}
}

func (f *framing) setLength(value []byte) error {
	n, err := strconv.ParseUint(string(value), 10, 62)
	if err != nil || f.length >= 0 && f.length != int64(n) {
		return errMalformed
	}
	f.length = int64(n)
	return nil
}

func (f *framing) setCoding(value []byte) error {
	if f.minor == 0 {
		return nil // there is none in HTTP/1.0
	}
	if f.chunked || !bytes.EqualFold(value, []byte("chunked")) {
		return errMalformed
	}
	f.chunked = true
	return nil
}

func (f *framing) setConnection(value []byte) {
	for token := range bytes.SplitSeq(value, []byte(",")) {
		switch token = bytes.Trim(token, " \t"); {
		case isName(token, "close"):
			f.closes = true
		case isName(token, "keep-alive"):
			f.stays = true
		}
	}
}

func setFirst(s *string, value []byte) {
	if *s == "" {
		*s = string(value)
	}
}

// isName reports whether b is lower, which is in lower case, in any case.
func isName(b []byte, lower string) bool {
	return len(b) == len(lower) && strings.EqualFold(string(b), lower)
}

// parseStatus reads "HTTP/1.1 200 OK".
func parseStatus(line []byte) (minor byte, status int, err error) {
	const start = "HTTP/1."
	if len(line) < len("HTTP/1.1 200") || string(line[:len(start)]) != start || line[8] != ' ' ||
		len(line) > 12 && line[12] != ' ' {
		return 0, 0, errMalformed
	}
	if minor = line[7] - '0'; minor > 1 {
		return 0, 0, errMalformed
	}
	for _, c := range line[9:12] {
		if c < '0' || c > '9' {
			return 0, 0, errMalformed
		}
		status = 10*status + int(c-'0')
	}
	return minor, status, nil
}

// line reads one line of the header, without its end. It holds until the next
// read.
func (a *answerReader) line() ([]byte, error) {
	line, err := a.in.ReadSlice('\n')
	a.left -= len(line)
	if errors.Is(err, bufio.ErrBufferFull) {
		a.long = append(a.long[:0], line...)
		for errors.Is(err, bufio.ErrBufferFull) && a.left >= 0 {
			line, err = a.in.ReadSlice('\n')
			a.left -= len(line)
			a.long = append(a.long, line...)
		}
		line, a.long = a.long, nil // rare: not worth keeping
	}
	if a.left < 0 {
		return nil, errMalformed // too much
	}
	if err != nil {
		return nil, unexpectedEOF(err)
	}
	line = line[:len(line)-1]
	if n := len(line); n > 0 && line[n-1] == '\r' {
		line = line[:n-1]
	}
	return line, nil
}

// body reads the answer's body as far as it is worth it, and keeps its start. It
// reports whether it came to the end: whatever fails here, the status has
// decided.
func (a *answerReader) body(r *reply, f framing, conn net.Conn, deadline time.Time) (complete bool) {
	switch {
	case r.status == http.StatusSwitchingProtocols:
		return false
	case r.status == http.StatusNoContent, r.status == http.StatusNotModified:
		return !f.chunked && f.length <= 0
	case !f.chunked && f.length == 0:
		return true
	case !f.chunked && f.length > 0 && f.length <= int64(a.in.Buffered()):
		whole, _ := a.in.Peek(int(f.length))
		r.excerpt = bytes.Clone(whole[:min(len(whole), maxExcerpt)])
		_, err := a.in.Discard(len(whole))
		return err == nil
	}
	if limit := time.Now().Add(maxAnswerTime); limit.Before(deadline) {
		if conn.SetReadDeadline(limit) != nil {
			return false
		}
	}
	switch {
	case f.chunked:
		return readBody(r, httputil.NewChunkedReader(a.in)) && f.length < 0 && a.trailer()
	case f.length < 0:
		readBody(r, a.in)
		return false // its end is that of the connection
	default:
		body := &io.LimitedReader{R: a.in, N: f.length}
		return readBody(r, body) && body.N == 0
	}
}

// readBody reads body to its end, or as far as it is worth it, and keeps the
// start. It reports whether the end was reached.
func readBody(r *reply, body io.Reader) (ended bool) {
	buf := answers.Get().(*[4 << 10]byte)
	defer answers.Put(buf)
	var err error
	n := 0
	for n < len(buf) && err == nil {
		var m int
		m, err = body.Read(buf[n:])
		n += m
	}
	if n > 0 {
		r.excerpt = bytes.Clone(buf[:min(n, maxExcerpt)])
	}
	for read := n; err == nil && read <= maxAnswer; read += n {
		n, err = body.Read(buf[:])
	}
	return err == io.EOF
}

// trailer reads what follows the last chunk.
func (a *answerReader) trailer() bool {
	a.left = maxAnswer
	for {
		line, err := a.line()
		if err != nil || len(line) == 0 {
			return err == nil
		}
	}
}
