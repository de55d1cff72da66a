package inbox

import (
	"bytes"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestTableSurvivesJSON(t *testing.T) {
	t.Parallel()
	deep := Table{"end": int64(1)}
	for range 40 {
		deep = Table{"t": deep, "a": []any{deep}}
		deep = Table{"t": deep["t"]}
	}
	for name, table := range map[string]Table{
		"empty":      {},
		"scalars":    {"nil": nil, "true": true, "s": "text", "i": int64(-7), "big": int64(math.MinInt64), "u": uint64(math.MaxUint64)},
		"floats":     {"a": 1.0, "b": 0.1, "c": 1e300, "d": -0.5, "e": float64(float32(0.1)), "f": 5e-324},
		"infinite":   {"a": math.Inf(1), "b": math.Inf(-1)},
		"bytes":      {"b": []byte{0, 255}, "empty": []byte{}},
		"times":      {"t": time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC), "ms": time.Unix(1785585600000, 0).UTC(), "neg": time.Unix(math.MinInt64, 0).UTC(), "max": time.Unix(math.MaxInt64, 0).UTC(), "zero": time.Unix(0, 0).UTC()},
		"decimals":   {"a": Decimal{2, 1234}, "b": Decimal{2, -5}, "c": Decimal{0, math.MinInt32}, "d": Decimal{255, 1}, "e": Decimal{2, 1200}, "f": Decimal{3, 0}},
		"strings":    {"q": `"\/`, "ctl": "\x00\n\x7f", "uni": "é €  😀", "html": "<&>"},
		"arrays":     {"a": []any{int64(1), "x", []any{}, Table{}, nil}},
		"nested":     {"x-death": []any{Table{"count": int64(3), "time": time.Unix(5, 0).UTC(), "routing-keys": []any{"k"}}}},
		"tag looks":  {"a": Table{"bytes": "AA=="}, "b": Table{"timestamp": "x"}, "c": Table{"decimal": Decimal{1, 1}}, "d": Table{"float": nil}, "e": Table{"table": Table{"table": []byte("x")}}},
		"top bytes":  {"bytes": "AA=="},
		"top table":  {"table": Table{"table": Table{}}},
		"top list":   {"table": []any{[]any{"a", "b"}}},
		"top scalar": {"table": "t7"},
		"top binary": {"table": []byte("t7")},
		"top float":  {"table": math.Inf(1)},
		"bad names":  {"\xff": "x", "\xfe": Table{"\xfd": []any{"y"}}, "ok": "z"},
		"deep":       deep,
	} {
		b, err := MarshalTable(table)
		if err != nil {
			t.Errorf("%s: MarshalTable: %v", name, err)
			continue
		}
		for _, c := range b {
			if c < ' ' || c > '~' {
				t.Errorf("%s: byte %#x in the JSON, want visible ASCII and spaces", name, c)
				break
			}
		}
		got, err := UnmarshalTable(b)
		if err != nil || !reflect.DeepEqual(got, table) {
			t.Errorf("%s: back from %.200s\n got %#v, %v\nwant %#v", name, b, got, err, table)
		}
	}
}

func TestTableJSONIsWhatTheContractSays(t *testing.T) {
	t.Parallel()
	for want, table := range map[string]Table{
		`{}`:                                         nil,
		`{"a":{"bytes":"/w=="}}`:                     {"a": "\xff"},
		`{"a":{"bytes":"eA=="}}`:                     {"a": []byte("x")},
		`{"a":{"decimal":"12.34"}}`:                  {"a": Decimal{2, 1234}},
		`{"a":{"decimal":"-0.05"}}`:                  {"a": Decimal{2, -5}},
		`{"a":1.0,"b":2}`:                            {"b": uint8(2), "a": float32(1)},
		`{"a":{"table":{"bytes":1}}}`:                {"a": Table{"bytes": 1}},
		`{"a":"caf\u00e9 \ud83d\ude00"}`:             {"a": "café 😀"},
		`{"a":{"timestamp":"2026-08-01T12:00:00Z"}}`: {"a": time.Date(2026, 8, 1, 14, 0, 0, 0, time.FixedZone("", 7200))},
		`{"a":{"timestamp":1785585600000}}`:          {"a": time.Unix(1785585600000, 0)},
		`{"a":{"float":"NaN"}}`:                      {"a": math.NaN()},
		`{"table":"t7"}`:                             {"table": "t7"},
		`{"table":[[{"bytes":"/w=="},1]]}`:           {"\xff": int8(1)},
	} {
		got, err := MarshalTable(table)
		if err != nil || string(got) != want {
			t.Errorf("MarshalTable(%#v)\n got %s, %v\nwant %s", table, got, err, want)
		}
	}
}

func TestNonUTF8StringComesBackAsItsBytes(t *testing.T) {
	t.Parallel()
	b, err := MarshalTable(Table{"a": "\xff\x00"})
	if err != nil {
		t.Fatal(err)
	}
	got, err := UnmarshalTable(b)
	if want := (Table{"a": []byte("\xff\x00")}); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %#v, %v, want %#v", got, err, want)
	}
}

func TestTableLimitsAreErrors(t *testing.T) {
	t.Parallel()
	deep := Table{}
	list := []any{}
	for range MaxTableDepth + 1 {
		deep = Table{"t": deep}
		list = []any{list}
	}
	for name, table := range map[string]Table{
		"deep tables": deep,
		"deep lists":  {"a": list},
		"long string": {"a": strings.Repeat("x", MaxTableBytes+1)},
		"long bytes":  {"a": make([]byte, MaxTableBytes+1)},
		"long list":   {"a": slicesOf(strings.Repeat("x", 1<<20), 20)},
	} {
		if _, err := MarshalTable(table); !errors.Is(err, ErrTableLimit) {
			t.Errorf("%s: got error %v, want %v", name, err, ErrTableLimit)
		}
	}
	text := []byte(strings.Repeat(`{"t":`, MaxTableDepth+2) + "1" + strings.Repeat("}", MaxTableDepth+2))
	if _, err := UnmarshalTable(text); !errors.Is(err, ErrTableLimit) {
		t.Errorf("deep JSON: got error %v, want %v", err, ErrTableLimit)
	}
	type celsius int
	if _, err := MarshalTable(Table{"a": celsius(1)}); err == nil {
		t.Error("a foreign type: got no error")
	}
}

func slicesOf(s string, n int) []any {
	a := make([]any, n)
	for i := range a {
		a[i] = s
	}
	return a
}

func TestUnmarshalTableRefusesWhatIsNoTable(t *testing.T) {
	t.Parallel()
	for _, in := range []string{
		`[]`, `1`, `"x"`, `{`, `{} {}`, `{"a":{"bytes":1}}`, `{"a":{"bytes":"?"}}`, `{"a":{"timestamp":"soon"}}`,
		`{"a":{"timestamp":1.5}}`, `{"a":{"decimal":"1."}}`, `{"a":{"decimal":"1.2.3"}}`, `{"a":{"decimal":""}}`,
		`{"a":{"float":"1"}}`, `{"a":{"table":1}}`, `{"table":[1]}`, `{"table":[[1,2]]}`, `{"a":99999999999999999999}`,
	} {
		if got, err := UnmarshalTable([]byte(in)); err == nil {
			t.Errorf("UnmarshalTable(%s): got %#v, want an error", in, got)
		}
	}
	if got, err := UnmarshalTable(nil); got != nil || err != nil {
		t.Errorf("UnmarshalTable(nil): got %#v, %v, want nil, nil", got, err)
	}
}

// FuzzUnmarshalTable checks that whatever is accepted means the same after
// another round.
func FuzzUnmarshalTable(f *testing.F) {
	for _, s := range []string{
		`{"a":1,"b":1.5,"c":"x","d":{"bytes":"eA=="},"e":[{"decimal":"1.20"}]}`,
		`{"table":[[{"bytes":"/w=="},{"timestamp":1}]]}`, `{"a":{"table":{"bytes":"x"}}}`, `{"a":{"float":"NaN"}}`,
		`{"a":{"timestamp":"2026-08-01T12:00:00.5Z"}}`, `{"table":{"table":{"table":[]}}}`, `{"a":-0.0,"b":-0,"c":"\ud800"}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		table, err := UnmarshalTable(in)
		if err != nil {
			return
		}
		once, err := MarshalTable(table)
		if err != nil {
			t.Fatalf("MarshalTable(%#v): %v", table, err)
		}
		again, err := UnmarshalTable(once)
		if err != nil {
			t.Fatalf("UnmarshalTable(%s): %v", once, err)
		}
		twice, err := MarshalTable(again)
		if err != nil || !bytes.Equal(once, twice) {
			t.Fatalf("second round: got %s, %v, want %s", twice, err, once)
		}
	})
}
