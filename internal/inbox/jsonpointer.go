package inbox

import (
	"bytes"
	"encoding/json"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// document finds values in a JSON body without building it. The body is
// validated once, at the first question; after that the walk over it can trust
// its syntax.
type document struct {
	body    []byte
	checked bool
}

// text returns the body without what stands around its value, or nil where the
// body is not JSON. Producers on .NET like to send a byte order mark in front.
func (d *document) text() []byte {
	if !d.checked {
		d.checked = true
		d.body = bytes.TrimPrefix(d.body, []byte("\xef\xbb\xbf"))
		if !json.Valid(d.body) {
			d.body = nil
		}
		d.body = bytes.Trim(d.body, " \t\r\n")
	}
	return d.body
}

// value returns the text of the value that pointer (RFC 6901) leads to, as it
// stands in the body. ok is false where it leads nowhere, and where an object on
// the way has the name more than once: readers differ about which one counts.
func (d *document) value(pointer string) (text []byte, ok bool) {
	text = d.text()
	for pointer != "" {
		if pointer[0] != '/' || len(text) == 0 {
			return nil, false
		}
		var token string
		if end := strings.IndexByte(pointer[1:], '/'); end < 0 {
			token, pointer = pointer[1:], ""
		} else {
			token, pointer = pointer[1:1+end], pointer[1+end:]
		}
		switch text[0] {
		case '{':
			text = member(text, unescapeToken(token))
		case '[':
			text = element(text, token)
		default:
			return nil, false
		}
	}
	return text, len(text) > 0
}

// scalar returns the string or the literal text of the number that pointer leads
// to, "" for anything else. A number never goes through a float: 1.0 and 1 are
// two IDs, and 18-digit ones keep all their digits.
func (d *document) scalar(pointer string) string {
	text, ok := d.value(pointer)
	if !ok {
		return ""
	}
	switch c := text[0]; {
	case c == '"':
		return unquote(text)
	case c == '-' || c >= '0' && c <= '9':
		return string(text)
	}
	return ""
}

func unescapeToken(token string) string {
	if !strings.Contains(token, "~") {
		return token
	}
	return strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
}

// member returns the value of the only member of that name of object, else nil.
func member(object []byte, name string) (value []byte) {
	n := 0
	for i := skipSpace(object, 1); object[i] != '}'; {
		key := object[i : i+valueLen(object[i:])]
		i = skipSpace(object, i+len(key))
		i = skipSpace(object, i+1) // the colon
		v := object[i : i+valueLen(object[i:])]
		if keyIs(key, name) {
			value = v
			n++
		}
		i = skipSpace(object, i+len(v))
		if object[i] == ',' {
			i = skipSpace(object, i+1)
		}
	}
	if n != 1 {
		return nil
	}
	return value
}

// element returns the element of array that token, an index, names, else nil.
func element(array []byte, token string) []byte {
	if token == "" || token[0] == '0' && token != "0" || len(token) > 9 {
		return nil
	}
	index := 0
	for _, c := range []byte(token) {
		if c < '0' || c > '9' {
			return nil
		}
		index = 10*index + int(c-'0')
	}
	for i := skipSpace(array, 1); array[i] != ']'; index-- {
		v := array[i : i+valueLen(array[i:])]
		if index == 0 {
			return v
		}
		i = skipSpace(array, i+len(v))
		if array[i] == ',' {
			i = skipSpace(array, i+1)
		}
	}
	return nil
}

func skipSpace(b []byte, i int) int {
	for b[i] == ' ' || b[i] == '\t' || b[i] == '\r' || b[i] == '\n' {
		i++
	}
	return i
}

// valueLen returns the length of the value that b begins with.
func valueLen(b []byte) int {
	switch b[0] {
	case '"':
		return stringLen(b)
	case '{', '[':
		return nestedLen(b)
	}
	for i, c := range b {
		switch c {
		case ',', '}', ']', ' ', '\t', '\r', '\n':
			return i
		}
	}
	return len(b)
}

func stringLen(b []byte) int {
	for i := 1; ; i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
}

func nestedLen(b []byte) int {
	depth := 0
	for i := 0; ; i++ {
		switch b[i] {
		case '"':
			i += stringLen(b[i:]) - 1
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
}

func keyIs(quoted []byte, name string) bool {
	if bytes.IndexByte(quoted, '\\') < 0 {
		return string(quoted[1:len(quoted)-1]) == name
	}
	return unquote(quoted) == name
}

// unquote returns the bytes that a JSON string stands for. Unlike encoding/json
// it replaces nothing: bytes that are not UTF-8 stay, and a surrogate without its
// other half becomes the three bytes that UTF-8 would have for it, so that two
// such strings never become one ID.
func unquote(quoted []byte) string {
	s := quoted[1 : len(quoted)-1]
	if bytes.IndexByte(s, '\\') < 0 {
		return string(s)
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			b = append(b, s[i])
			continue
		}
		i++
		switch c := s[i]; c {
		case 'b':
			b = append(b, '\b')
		case 'f':
			b = append(b, '\f')
		case 'n':
			b = append(b, '\n')
		case 'r':
			b = append(b, '\r')
		case 't':
			b = append(b, '\t')
		case 'u':
			r := hex4(s[i+1:])
			i += 4
			if r >= 0xd800 && r < 0xdc00 && i+6 < len(s) && s[i+1] == '\\' && s[i+2] == 'u' {
				if both := utf16.DecodeRune(r, hex4(s[i+3:])); both != utf8.RuneError {
					r = both
					i += 6
				}
			}
			b = appendRune(b, r)
		default: // quote, backslash, slash
			b = append(b, c)
		}
	}
	return string(b)
}

func appendRune(b []byte, r rune) []byte {
	if r >= 0xd800 && r < 0xe000 {
		return append(b, 0xe0|byte(r>>12), 0x80|byte(r>>6)&0x3f, 0x80|byte(r)&0x3f)
	}
	return utf8.AppendRune(b, r)
}

func hex4(b []byte) (r rune) {
	for _, c := range b[:4] {
		switch {
		case c >= 'a':
			c -= 'a' - 10
		case c >= 'A':
			c -= 'A' - 10
		default:
			c -= '0'
		}
		r = r<<4 | rune(c)
	}
	return r
}
