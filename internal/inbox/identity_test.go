package inbox

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
	"testing"
	"time"
)

var (
	property = Source{Kind: SourceProperty}
	events   = Source{Kind: SourceCloudEvents}
)

func header(name string) Source { return Source{SourceHeader, name} }
func pointer(p string) Source   { return Source{SourceJSON, p} }
func one(s ...Source) (i Identity) { // each on its own, in that order
	for _, s := range s {
		i.Sources = append(i.Sources, []Source{s})
	}
	return i
}
func together(s ...Source) Identity { return Identity{Sources: [][]Source{s}} }

func TestMessageIDSources(t *testing.T) {
	t.Parallel()
	body := `{"id":12345678901234567890,"f":1.0,"e":1E2,"neg":-3,"s":"a b","esc":"a\u0062\/","obj":{"id":"inner","a/b":"slash","m~n":"tilde"},` +
		`"list":["zero",{"id":"one"}],"empty":"","null":null,"yes":true,"":"nameless"}`
	sum := sha256.Sum256([]byte(body))
	m := Message{
		Body:       []byte(body),
		Properties: Properties{MessageID: "mid", CorrelationID: "cid"},
		Headers: Table{
			"X-Id": "one", "x-number": int64(-9007199254740993), "u8": uint8(200), "u64": uint64(18446744073709551615), "bytes": []byte("raw\xff"),
			"float": 1.5, "bool": true, "time": time.Unix(1, 0), "table": Table{}, "list": []any{"x"}, "nil": nil, "empty": "",
			"Twice": "a", "TWICE": "b", "exact": "lower", "EXACT": "upper", "decimal": Decimal{2, 5},
		},
	}
	for name, c := range map[string]struct {
		identity Identity
		want     MessageID
	}{
		"nothing configured":         {Identity{}, ""},
		"property":                   {one(property), "mid"},
		"named property":             {one(Source{SourceProperty, "message_id"}), "mid"},
		"correlation":                {one(Source{SourceProperty, "correlation_id"}), "cid"},
		"header":                     {one(header("X-Id")), "one"},
		"header by case":             {one(header("x-ID")), "one"},
		"exact before case":          {one(header("exact")), "lower"},
		"two that differ by case":    {one(header("twice")), ""},
		"absent header":              {one(header("none")), ""},
		"integer header":             {one(header("x-number")), "-9007199254740993"},
		"small integer header":       {one(header("u8")), "200"},
		"large integer header":       {one(header("u64")), "18446744073709551615"},
		"byte header":                {one(header("bytes")), "raw%FF"},
		"float header":               {one(header("float")), ""},
		"bool header":                {one(header("bool")), ""},
		"time header":                {one(header("time")), ""},
		"table header":               {one(header("table")), ""},
		"list header":                {one(header("list")), ""},
		"null header":                {one(header("nil")), ""},
		"decimal header":             {one(header("decimal")), ""},
		"empty header":               {one(header("empty")), ""},
		"empty, then property":       {one(header("empty"), property), "mid"},
		"order":                      {one(header("X-Id"), property), "one"},
		"JSON number keeps digits":   {one(pointer("/id")), "12345678901234567890"},
		"JSON number keeps its text": {one(pointer("/f")), "1.0"},
		"JSON exponent":              {one(pointer("/e")), "1E2"},
		"JSON negative":              {one(pointer("/neg")), "-3"},
		"JSON string":                {one(pointer("/s")), "a%20b"},
		"JSON escapes":               {one(pointer("/esc")), "ab/"},
		"JSON nested":                {one(pointer("/obj/id")), "inner"},
		"JSON slash":                 {one(pointer("/obj/a~1b")), "slash"},
		"JSON tilde":                 {one(pointer("/obj/m~0n")), "tilde"},
		"JSON index":                 {one(pointer("/list/0")), "zero"},
		"JSON into list":             {one(pointer("/list/1/id")), "one"},
		"JSON index beyond":          {one(pointer("/list/2")), ""},
		"JSON index with zero":       {one(pointer("/list/00")), ""},
		"JSON index after the last":  {one(pointer("/list/-")), ""},
		"JSON huge index":            {one(pointer("/list/99999999999999999999")), ""},
		"JSON nameless":              {one(pointer("/")), "nameless"},
		"JSON empty":                 {one(pointer("/empty")), ""},
		"JSON null":                  {one(pointer("/null")), ""},
		"JSON bool":                  {one(pointer("/yes")), ""},
		"JSON object":                {one(pointer("/obj")), ""},
		"JSON absent":                {one(pointer("/obj/none")), ""},
		"JSON through a string":      {one(pointer("/s/id")), ""},
		"JSON without slash":         {one(pointer("id")), ""},
		"body digest":                {one(Source{Kind: SourceSHA256}), MessageID(hex.EncodeToString(sum[:]))},
		"composite":                  {together(header("X-Id"), property), "one%20mid"},
		"composite with a part less": {together(header("none"), property), ""},
		"composite with empty part":  {together(header("empty"), property), ""},
		"composite, then property":   {Identity{Sources: [][]Source{{header("none"), property}, {property}}}, "mid"},
		"no event":                   {one(events), ""},
		"unknown kind finds nothing": {one(Source{Kind: "magic"}), ""},
		"composite of none is no ID": {Identity{Sources: [][]Source{{}}}, ""},
	} {
		got, ok := c.identity.MessageID(&m)
		if got != c.want || ok != (c.want != "") {
			t.Errorf("%s: got %q, %v, want %q", name, got, ok, c.want)
		}
	}
}

func TestNoIDIsNeverTheEmptyKey(t *testing.T) {
	t.Parallel()
	i := one(property, Source{SourceProperty, "correlation_id"}, header("id"), pointer("/id"), events)
	for _, body := range []string{"", " ", "null", "{}", `{"id":""}`, `{"id":{}}`, "{", `{"id":1`, "\xff"} {
		if got, ok := i.MessageID(&Message{Body: []byte(body), Headers: Table{"id": ""}}); ok || got != "" {
			t.Errorf("body %q: got %q, %v, want none", body, got, ok)
		}
	}
}

func TestJSONBodies(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		body, pointer string
		want          MessageID
	}{
		"white space":          {" \n{ \"id\" :\t\"x\" , \"y\" : [ ] } \r\n", "/id", "x"},
		"byte order mark":      {"\xef\xbb\xbf{\"id\":\"x\"}", "/id", "x"},
		"same name twice":      {`{"id":"x","id":"y"}`, "/id", ""},
		"same name escaped":    {`{"id":"x","\u0069d":"y"}`, "/id", ""},
		"same name elsewhere":  {`{"a":{"id":"x"},"b":{"id":"y"},"id":"z"}`, "/id", "z"},
		"escaped name":         {`{"\u0069d":"x"}`, "/id", "x"},
		"trailing text":        {`{"id":"x"} {`, "/id", ""},
		"whole body a string":  {`"x"`, "", "x"},
		"whole body a number":  {` 42 `, "", "42"},
		"brackets in strings":  {`{"a":"}]\"{","id":"x"}`, "/id", "x"},
		"backslash at the end": {`{"a":"\\","id":"x"}`, "/id", "x"},
		"not UTF-8":            {"{\"id\":\"\xff\"}", "/id", "%FF"},
		"not UTF-8, escaped":   {"{\"id\":\"\xff\\n\"}", "/id", "%FF%0A"},
		"surrogates":           {`{"id":"\ud83d\ude00"}`, "/id", "%F0%9F%98%80"},
		"lone surrogate":       {`{"id":"\ud83d"}`, "/id", "%ED%A0%BD"},
		"other lone surrogate": {`{"id":"\ud83dx\ude00"}`, "/id", "%ED%A0%BDx%ED%B8%80"},
		"two high surrogates":  {`{"id":"\ud83d\ud83d\ude00"}`, "/id", "%ED%A0%BD%F0%9F%98%80"},
		"gzip":                 {"\x1f\x8b\x08", "/id", ""},
		"long":                 {`{"pad":"` + strings.Repeat("x", 1<<20) + `","id":"x"}`, "/id", "x"},
	} {
		got, _ := one(pointer(c.pointer)).MessageID(&Message{Body: []byte(c.body)})
		if got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

func TestCloudEvents(t *testing.T) {
	t.Parallel()
	const want = "/orders%20e1"
	attributes := func(prefix string) Table {
		return Table{prefix + "specversion": "1.0", prefix + "source": "/orders", prefix + "id": "e1", prefix + "type": "paid"}
	}
	structured := `{"specversion":"1.0","source":"/orders","id":"e1","data":{"id":"inner"}}`
	for name, c := range map[string]struct {
		m    Message
		want MessageID
	}{
		"colon":                 {Message{Headers: attributes("cloudEvents:")}, want},
		"underscore":            {Message{Headers: attributes("cloudEvents_")}, want},
		"as in HTTP":            {Message{Headers: attributes("ce-")}, want},
		"as in HTTP, upper":     {Message{Headers: attributes("CE-")}, want},
		"Knative":               {Message{Headers: attributes("")}, want},
		"bytes":                 {Message{Headers: Table{"ce-source": []byte("/orders"), "ce-id": []byte("e1")}}, want},
		"bare id is no event":   {Message{Headers: Table{"source": "/orders", "id": "e1"}}, ""},
		"no source":             {Message{Headers: Table{"ce-specversion": "1.0", "ce-id": "e1"}}, ""},
		"structured":            {Message{Body: []byte(structured)}, want},
		"structured, any type":  {Message{Body: []byte(structured), Properties: Properties{ContentType: "text/plain"}}, want},
		"JSON but no event":     {Message{Body: []byte(`{"source":"/orders","id":"e1"}`)}, ""},
		"batch is no event":     {Message{Body: []byte("[" + structured + "]")}, ""},
		"binary before payload": {Message{Headers: attributes("ce-"), Body: []byte(`{"specversion":"1.0","source":"s","id":"other"}`)}, want},
	} {
		if got, _ := one(events).MessageID(&c.m); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

func TestCompositeKeepsItsPartsApart(t *testing.T) {
	t.Parallel()
	parts := []string{"a", "a b", "b", "b c", "c", "%", "%20", "%25", "% ", "%2", "0", "5", " ", "a%20b", "%2520", "urn:x%2Fy"}
	seen := map[MessageID][2]string{}
	i := together(header("a"), header("b"))
	for _, a := range parts {
		for _, b := range parts {
			id, ok := i.MessageID(&Message{Headers: Table{"a": a, "b": b}})
			if before, dup := seen[id]; dup || !ok {
				t.Errorf("(%q, %q) and %q: got the same ID %q", a, b, before, id)
			}
			seen[id] = [2]string{a, b}
		}
	}
	id, _ := i.MessageID(&Message{Headers: Table{"a": "urn:x%2Fy", "b": "1"}})
	if want := MessageID("urn:x%252Fy%201"); id != want {
		t.Errorf("a part without spaces: got %q, want %q", id, want)
	}
}

func FuzzCompositeIsInjective(f *testing.F) {
	f.Add("a b", "c", "a", "b c")
	f.Add("a%20", "c", "a ", "c")
	f.Add("%2520", "x", "%20", "x")
	f.Add("%2", "0", "%", "20")
	f.Fuzz(func(t *testing.T, a1, b1, a2, b2 string) {
		if x, y := join(a1, b1), join(a2, b2); (x == y) != (a1 == a2 && b1 == b2) {
			t.Errorf("join(%q, %q) = %q, join(%q, %q) = %q", a1, b1, x, a2, b2, y)
		}
	})
}

// FuzzJSONPointer compares the walk over the text with encoding/json.
func FuzzJSONPointer(f *testing.F) {
	for _, s := range []string{`{"id":"x"}`, `{"a":{"id":[1,2.50,{"id":"\u00e9\ud83d"}]}}`, `[[[["x"]]]]`, ` "x" `, `{"":0,"id":{"":-1e5}}`, `{"id":"x","id":1}`} {
		f.Add([]byte(s), "id", 0)
	}
	f.Fuzz(func(t *testing.T, body []byte, name string, index int) {
		doc := document{body: body}
		escaped := strings.ReplaceAll(strings.ReplaceAll(name, "~", "~0"), "/", "~1")
		text, ok := doc.value("/" + escaped)
		_, _ = doc.value("/" + escaped + "/0/" + escaped)
		var want map[string]json.RawMessage
		if json.Unmarshal(body, &want) != nil {
			return
		}
		if ok && string(text) != string(want[name]) {
			t.Errorf("value(%q) of %q: got %q, want %q", name, body, text, want[name])
		}
		var s string
		if raw := doc.scalar("/" + escaped); ok && text[0] == '"' && json.Unmarshal(text, &s) == nil && !strings.Contains(s, "\ufffd") && raw != s {
			t.Errorf("scalar(%q) of %q: got %q, want %q", name, body, raw, s)
		}
	})
}

func TestFingerprint(t *testing.T) {
	t.Parallel()
	print := func(i Identity, body string) Fingerprint { return i.FingerprintOf(&Message{Body: []byte(body)}) }
	whole, none := Identity{}, Identity{Fingerprint: FingerprintNone}
	amount := Identity{Fingerprint: FingerprintJSON, FingerprintPointer: "/order"}

	sum := sha256.Sum256([]byte("body"))
	if got, want := print(whole, "body").String(), hex.EncodeToString(sum[:8]); got != want {
		t.Errorf("of the body: got %s, want %s", got, want)
	}
	if print(whole, "").IsZero() {
		t.Error("an empty body has no fingerprint, want one")
	}
	if !print(none, "body").IsZero() {
		t.Error("with none: got a fingerprint")
	}
	a, b := `{"sent":1,"order":{"eur":10}}`, `{"sent":2,"order":{"eur":10}}`
	if print(whole, a).Matches(print(whole, b)) || !print(amount, a).Matches(print(amount, b)) {
		t.Error("a pointer must hide what is beside it, and only it")
	}
	if print(amount, a).Matches(print(amount, `{"sent":1,"order":{"eur":11}}`)) {
		t.Error("a difference behind the pointer went unseen")
	}
	if got := print(amount, "body"); got != print(whole, "body") {
		t.Errorf("a pointer to nothing: got %s, want the body's", got)
	}
}

func BenchmarkMessageID(b *testing.B) {
	m := Message{
		Properties: Properties{MessageID: "0b2d0f66-52f4-4f5c-8f0e-3a1c0a6a2d55"},
		Headers:    Table{"tenant": "acme", "id": int64(42), "ce-source": "/orders", "ce-id": "e1"},
		Body:       []byte(`{"pad":"` + strings.Repeat("x", 900) + `","id":"0b2d0f66"}`),
	}
	for name, i := range map[string]Identity{
		"property":    one(property),
		"header":      one(header("tenant")),
		"header_case": one(header("Tenant")),
		"composite":   together(header("tenant"), header("id")),
		"cloudevents": one(events),
		"json_1KiB":   one(pointer("/id")),
		"sha256_1KiB": one(Source{Kind: SourceSHA256}),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				sink, _ = i.MessageID(&m)
			}
		})
	}
}
