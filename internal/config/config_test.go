package config

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"gopkg.in/yaml.v3"
)

var update = flag.Bool("update", false, "rewrite testdata/*.golden")

func env(pairs ...string) Getenv {
	m := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	return func(name string) (string, bool) {
		v, ok := m[name]
		return v, ok
	}
}

const minimal = "consumers: [{name: billing, queue: orders.paid, forward: {url: 'http://127.0.0.1:8080/messages'}}]\n"

// with returns a file of one consumer and further lines.
func with(t *testing.T, more string) Config {
	t.Helper()
	c, err := Parse(strings.NewReader(minimal+more), env())
	if err != nil {
		t.Fatalf("Parse:\n%v", err)
	}
	return c
}

// consumer parses a file whose only consumer has further keys.
func consumer(more string) (Consumer, error) {
	text := "consumers:\n- name: billing\n  queue: orders.paid\n  forward: {url: 'http://127.0.0.1:8080/'}\n"
	for line := range strings.Lines(more) {
		text += "  " + line
	}
	c, err := Parse(strings.NewReader(text), env())
	if err != nil {
		return Consumer{}, err
	}
	return c.Consumers[0], nil
}

func TestDefaultsAreThoseOfTheContract(t *testing.T) {
	t.Parallel()
	got := with(t, "")
	want := Default()
	c := DefaultConsumer()
	c.Name, c.Queue, c.Forward.URL = "billing", "orders.paid", NewURL("http://127.0.0.1:8080/messages")
	want.Consumers = []Consumer{c}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%s\nwant\n%s", got.Redacted(), want.Redacted())
	}
}

func TestExampleIsTheDefaults(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../config.example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	got, err := Parse(bytes.NewReader(text), env())
	if err != nil {
		t.Fatalf("the example:\n%v", err)
	}
	if want := with(t, ""); string(got.Redacted()) != string(want.Redacted()) {
		t.Errorf("the example stands for\n%s\nwant the defaults\n%s", got.Redacted(), want.Redacted())
	}
	if w := got.Warnings(); len(w) > 0 {
		t.Errorf("the example has warnings: %v", w)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	checkKeys(t, doc.Content[0], reflect.TypeOf(got), "")
}

// checkKeys checks that n has every key of t, in the order of the fields.
func checkKeys(t *testing.T, n *yaml.Node, typ reflect.Type, path string) {
	t.Helper()
	if typ.Kind() == reflect.Slice && typ.Elem() == reflect.TypeFor[Consumer]() {
		n, typ = n.Content[0], typ.Elem()
	}
	if typ.Kind() != reflect.Struct || n.Kind != yaml.MappingNode {
		return
	}
	var keys []string
	for i := 0; i < len(n.Content); i += 2 {
		keys = append(keys, n.Content[i].Value)
		if i := fieldOf(typ, n.Content[i].Value); i >= 0 {
			continue
		}
		t.Errorf("%s: the example has a key %s that the configuration has not", path, n.Content[i].Value)
	}
	if want := yamlKeys(typ); !reflect.DeepEqual(keys, want) {
		t.Errorf("%s: got the keys %v, want %v", path, keys, want)
		return
	}
	for i := 0; i < len(n.Content); i += 2 {
		key := n.Content[i].Value
		checkKeys(t, n.Content[i+1], typ.Field(fieldOf(typ, key)).Type, join(path, key))
	}
}

func fieldOf(t reflect.Type, key string) int {
	for i := range t.NumField() {
		if yamlKey(t.Field(i)) == key {
			return i
		}
	}
	return -1
}

func TestEveryKeyIsDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	var check func(typ reflect.Type)
	check = func(typ reflect.Type) {
		if typ.Kind() == reflect.Slice {
			typ = typ.Elem()
		}
		if typ.Kind() != reflect.Struct {
			return
		}
		for i := range typ.NumField() {
			key := yamlKey(typ.Field(i))
			if key != "" && !bytes.Contains(text, []byte(key)) {
				t.Errorf("docs/configuration.md does not mention %s", key)
			}
			check(typ.Field(i).Type)
		}
	}
	check(reflect.TypeFor[Config]())
}

func TestRedactedDumpParsesToTheSame(t *testing.T) {
	t.Parallel()
	c := with(t, `
broker: {urls: ["amqp://h/", "amqp://k:5673/v"], consumer_timeout: 0s}
store: {url: "postgres://u@h/db?sslmode=disable", retention: 8d}
admin: {allowed_hosts: [a.example]}
`)
	again, err := Parse(bytes.NewReader(c.Redacted()), env())
	if err != nil || !bytes.Equal(again.Redacted(), c.Redacted()) {
		t.Errorf("got\n%s\n%v\nwant\n%s", again.Redacted(), err, c.Redacted())
	}
}

// TestProblems compares what is said about each file of testdata with the
// expected text beside it.
func TestProblems(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no test data: %v", err)
	}
	for _, name := range files {
		t.Run(filepath.Base(name), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			_, err = Parse(bytes.NewReader(text), env("LEVEL", "CANARY", "EMPTY", ""))
			var problems Problems
			if !errors.As(err, &problems) {
				t.Fatalf("got %v, want Problems", err)
			}
			golden := strings.TrimSuffix(name, ".yaml") + ".golden"
			if *update {
				if err := os.WriteFile(golden, []byte(err.Error()+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err2 := os.ReadFile(golden)
			if err2 != nil {
				t.Fatal(err2)
			}
			if got := err.Error() + "\n"; got != string(want) {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			if strings.Contains(err.Error(), "CANARY") {
				t.Errorf("a secret is shown: %v", err)
			}
		})
	}
}

func TestForms(t *testing.T) {
	t.Parallel()
	c, err := consumer(`
message_id: [[header:tenant, "header:X Id"], json:/a~1b/0, property:correlation_id, property:message_id, cloudevents, sha256]
fingerprint: json:/order
max_body: 512KB
park: {exchange: "", routing_key: orders.parked}
declare: {type: quorum, arguments: {x-delivery-limit: 50, x-single-active-consumer: true, x-dead-letter-exchange: dlx}}
`)
	if err != nil {
		t.Fatal(err)
	}
	wantID := MessageID{
		{{"header", "tenant"}, {"header", "X Id"}},
		{{"json", "/a~1b/0"}},
		{{"property", "correlation_id"}},
		{{"property", ""}},
		{{"cloudevents", ""}},
		{{"sha256", ""}},
	}
	if !reflect.DeepEqual(c.MessageID, wantID) {
		t.Errorf("message_id: got %v, want %v", c.MessageID, wantID)
	}
	if want := (Fingerprint{"json", "/order"}); c.Fingerprint != want {
		t.Errorf("fingerprint: got %v, want %v", c.Fingerprint, want)
	}
	if c.MaxBody != 512_000 {
		t.Errorf("max_body: got %d, want 512000", c.MaxBody)
	}
	if want := (Park{ToBroker: true, RoutingKey: "orders.parked"}); c.Park != want {
		t.Errorf("park: got %v, want %v", c.Park, want)
	}
	wantArgs := Arguments{"x-delivery-limit": int64(50), "x-single-active-consumer": true, "x-dead-letter-exchange": "dlx"}
	if !reflect.DeepEqual(c.Declare.Arguments, wantArgs) {
		t.Errorf("arguments: got %#v, want %#v", c.Declare.Arguments, wantArgs)
	}
}

func TestStatusOverrides(t *testing.T) {
	t.Parallel()
	c, err := Parse(strings.NewReader("consumers: [{name: a, queue: q, forward: {url: 'http://h/', status: {404: park, 5XX: retry, 503: later}}}]"), env())
	if err != nil {
		t.Fatal(err)
	}
	if want := (Status{"404": "park", "5xx": "retry", "503": "later"}); !reflect.DeepEqual(c.Consumers[0].Forward.Status, want) {
		t.Errorf("got %v, want %v", c.Consumers[0].Forward.Status, want)
	}
}

func TestPrefetchFollowsConcurrency(t *testing.T) {
	t.Parallel()
	for more, want := range map[string][3]int{
		"":                               {16, 32, 256},
		"prefetch: auto":                 {16, 32, 256},
		"concurrency: 64":                {64, 128, 1024},
		"concurrency: 2":                 {2, 4, 32},
		"concurrency: 1":                 {1, 2, 2},
		"concurrency: 1000":              {1000, 2000, 2000},
		"prefetch: 1":                    {1, 1, 1},
		"prefetch: 1000":                 {16, 1000, 1000},
		"concurrency: 8\nprefetch: 100":  {8, 100, 100},
		"concurrency: 8\nprefetch: auto": {8, 16, 128},
	} {
		c, err := consumer(more)
		least, most := c.PrefetchBounds()
		if got := [3]int{c.Concurrency, least, most}; err != nil || got != want {
			t.Errorf("%q: got %v, %v, want %v", more, got, err, want)
		}
	}
	for _, wrong := range []string{"prefetch: -1", "prefetch: many", "prefetch: 70000"} {
		if c, err := consumer(wrong); err == nil {
			t.Errorf("%q: got %v, want an error", wrong, c.Prefetch)
		}
	}
}

func TestRoomForMessagesInHand(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]AutoSize{"": SizeAuto, "max_in_hand: auto\n": SizeAuto, "max_in_hand: 64MiB\n": 64 << 20} {
		c, err := Parse(strings.NewReader(text+"consumers: [{name: a, queue: q, forward: {url: 'http://h/'}}, {name: b, queue: r, max_body: 40MiB, forward: {url: 'http://h/'}}]"), env())
		if err != nil || c.MaxInHand != want {
			t.Errorf("%q: got %v, %v, want %v", text, c.MaxInHand, err, want)
		}
		warned := 0
		for _, w := range c.Warnings() {
			if w.Path == "consumers[1].max_body" {
				warned++
			}
		}
		if want := map[bool]int{true: 1}[want != SizeAuto]; warned != want {
			t.Errorf("%q: %d warnings that a body of 40 MiB is more than half of it, want %d", text, warned, want)
		}
	}
	for _, wrong := range []string{"0B", "-1B", "16", "much"} {
		if c, err := Parse(strings.NewReader("max_in_hand: "+wrong+"\nconsumers: [{name: a, queue: q, forward: {url: 'http://h/'}}]"), env()); err == nil {
			t.Errorf("%q: got %v, want an error", wrong, c.MaxInHand)
		}
	}
}

func TestDurations(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]time.Duration{
		"30s": 30 * time.Second, "1h30m": 90 * time.Minute, "7d": 168 * time.Hour, "1d12h": 36 * time.Hour, "500ms": 500 * time.Millisecond, "0s": 0,
	} {
		got, err := parseDuration(s)
		if err != nil || got != want {
			t.Errorf("%s: got %v, %v, want %v", s, got, err, want)
		}
		if again, err := parseDuration(formatDuration(got)); err != nil || again != want {
			t.Errorf("%s written as %s: got %v, %v", s, formatDuration(got), again, err)
		}
	}
	for _, s := range []string{"30", "0", "1.5", "1e3", "", "d", "1.5d", "-1d", "1h7d", "30 s", "30sec", "99999999999h", "60000d99999999h", "NaN", "1d-1h"} {
		if got, err := parseDuration(s); err == nil {
			t.Errorf("%q: got %v, want an error", s, got)
		}
	}
}

func TestSizes(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]Size{"16MiB": 16 << 20, "512KB": 512_000, "1 GiB": 1 << 30, "7B": 7, "0B": 0} {
		got, err := parseSize(s)
		if err != nil || got != want {
			t.Errorf("%s: got %v, %v, want %d", s, got, err, want)
		}
		if again, err := parseSize(got.String()); err != nil || again != want {
			t.Errorf("%s written as %s: got %d, %v", s, got, again, err)
		}
	}
	for _, s := range []string{"16", "", "MiB", "1.5MiB", "-1B", "99999999999GiB", "16 M"} {
		if got, err := parseSize(s); err == nil {
			t.Errorf("%q: got %v, want an error", s, got)
		}
	}
}

func TestVariables(t *testing.T) {
	t.Parallel()
	get := env("A", "alpha", "EMPTY", "", "EVIL", "${A}")
	for s, want := range map[string]string{
		"x": "x", "${A}": "alpha", "<${A}-${A}>": "<alpha-alpha>", "${EMPTY}": "", "${EMPTY:-d}": "d", "${NONE:-}": "", "${NONE:-d:-e}": "d:-e",
		"$${A}": "${A}", "$A $ $$ {A}": "$A $ $$ {A}", "${EVIL}": "${A}",
	} {
		if got, _, err := expand(s, get); err != nil || got != want {
			t.Errorf("%q: got %q, %v, want %q", s, got, err, want)
		}
	}
	for _, s := range []string{"${NONE}", "${", "${A", "${}", "${1A}", "${A B}", "${A:+x}"} {
		if got, _, err := expand(s, get); err == nil {
			t.Errorf("%q: got %q, want an error", s, got)
		}
	}
	c, err := Parse(strings.NewReader("consumers: [{name: a, queue: '${Q}', concurrency: '${N}', forward: {url: 'http://${H:-127.0.0.1}/'}}]"), env("Q", "orders: #1", "N", "4"))
	if err != nil || c.Consumers[0].Queue != "orders: #1" || c.Consumers[0].Concurrency != 4 || c.Consumers[0].Forward.URL.Reveal() != "http://127.0.0.1/" {
		t.Errorf("got %+v, %v", c.Consumers, err)
	}
}

func TestMergedMappings(t *testing.T) {
	t.Parallel()
	c, err := Parse(strings.NewReader(`
consumers:
- &first {name: a, queue: q, concurrency: 4, forward: {url: http://127.0.0.1/a}}
- {<<: *first, name: b, queue: r}
`), env())
	if err != nil {
		t.Fatal(err)
	}
	if b := c.Consumers[1]; b.Name != "b" || b.Queue != "r" || b.Concurrency != 4 || b.Forward.URL.Reveal() != "http://127.0.0.1/a" {
		t.Errorf("got %+v", b)
	}
}

func TestWarnings(t *testing.T) {
	t.Parallel()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("t"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Parse(strings.NewReader(fmt.Sprintf(`
broker: {url: amqp://guest:guest@rabbit/}
store: {retention: 1h}
consumers:
- {name: a, queue: q, message_id: [property, sha256], on_missing_id: forward, forward: {url: http://app/, token_file: %s}}
- {name: b, queue: q, on_mismatch: ack, on_missing_id: reject, forward: {url: http://127.0.0.1/, timeout: 10ms}}
`, token)), env())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, w := range c.Warnings() {
		got = append(got, w.Path)
	}
	want := []string{
		"broker.url", "store.retention", "consumers[0].message_id", "consumers[0].on_missing_id", "consumers[0].forward.url",
		"consumers[1].on_missing_id", "consumers[1].on_mismatch", "consumers[1].forward.timeout", "consumers[1].queue",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got warnings at %v, want %v", got, want)
	}
}

func TestLoadNamesTheFile(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "inboxd.yaml")
	if _, err := Load(name); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file: got %v", err)
	}
	if err := os.WriteFile(name, []byte("brokr: {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Load(name)
	var problems Problems
	if !errors.As(err, &problems) || !strings.HasPrefix(err.Error(), name+":\n") {
		t.Errorf("got %v, want Problems under the file's name", err)
	}
}

// A probe in a shell-less image asks the daemon that runs: nothing but the
// addresses may fail it.
func TestEndpointsAreFoundInAConfigurationWithMistakesElsewhere(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "inboxd.yaml")
	write := func(endpoints string) {
		t.Helper()
		text := "broker: {password_file: /nowhere/secret, urls: ['${INBOXD_TEST_NOT_SET}']}\nconsumers: [{title: billing}]\n" + endpoints
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("metrics: {listen: '127.0.0.1:1'}\nadmin: {listen: '0.0.0.0:2', token_file: /nowhere/token}\n")
	if _, err := Load(file); err == nil {
		t.Error("Load: got no error, want the mistakes")
	}
	c, err := LoadEndpoints(file)
	if err != nil || c.Metrics.Listen != "127.0.0.1:1" || c.Admin.Listen != "0.0.0.0:2" || c.Admin.TokenFile != "/nowhere/token" {
		t.Errorf("LoadEndpoints: got %+v, %+v, %v, want what the file says", c.Metrics, c.Admin, err)
	}
	for _, wrong := range []string{"metrics: {listen: here}\n", "admin: {listen: here}\n", "admin: 7\n", "admin: [\n"} {
		write(wrong)
		if c, err := LoadEndpoints(file); err == nil {
			t.Errorf("%q: got %+v, %+v, want an error", wrong, c.Metrics, c.Admin)
		}
	}
}

func TestValidateChecksWhatWasBuiltByHand(t *testing.T) {
	t.Parallel()
	c := with(t, "")
	if err := c.Validate(); err != nil {
		t.Errorf("a parsed configuration: %v", err)
	}
	c.Consumers[0].Prefetch = 0
	if err := c.Validate(); err == nil {
		t.Error("prefetch 0: got no error")
	}
}

func FuzzParse(f *testing.F) {
	example, err := os.ReadFile("../../config.example.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(example)
	f.Add([]byte(minimal))
	files, _ := filepath.Glob("testdata/*.yaml")
	for _, name := range files {
		if text, err := os.ReadFile(name); err == nil {
			f.Add(text)
		}
	}
	f.Add([]byte("a: &a [*a]\n<<: &b {<<: *b}\nconsumers: &c [*c]"))
	f.Fuzz(func(t *testing.T, text []byte) {
		begun := time.Now()
		c, err := Parse(bytes.NewReader(text), env("A", "a"))
		if took := time.Since(begun); took > 5*time.Second {
			t.Errorf("took %v", took)
		}
		if err != nil {
			if err.Error() == "" {
				t.Error("an error without a text")
			}
			return
		}
		if err := c.Validate(); err != nil {
			t.Errorf("valid to Parse, but not to Validate: %v", err)
		}
		if strings.Contains(string(c.Redacted()), redacted) {
			return
		}
		if again, err := Parse(bytes.NewReader(c.Redacted()), env()); err == nil && !bytes.Equal(again.Redacted(), c.Redacted()) {
			t.Errorf("got back\n%s\nfrom\n%s", again.Redacted(), c.Redacted())
		}
	})
}
