package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

func TestEveryOrderIsPublishedAndTheDuplicatesTwice(t *testing.T) {
	t.Parallel()
	orders, err := makeOrders(orderCount, 7)
	if err != nil {
		t.Fatal(err)
	}
	published := withDuplicates(orders, duplicateCount, 7)
	if got, want := len(published), orderCount+duplicateCount; got != want {
		t.Errorf("published %d messages, want %d", got, want)
	}
	bodies, times := map[string]string{}, map[string]int{}
	var originals []string
	for _, m := range published {
		if times[m.id]++; times[m.id] == 1 {
			bodies[m.id] = string(m.body)
			originals = append(originals, m.id)
		} else if bodies[m.id] != string(m.body) {
			t.Errorf("message %s: the duplicate has another body", m.id)
		}
	}
	if got := len(times); got != orderCount {
		t.Errorf("%d different messages, want %d", got, orderCount)
	}
	twice := 0
	for id, n := range times {
		if n > 2 {
			t.Errorf("message %s is published %d times, want 1 or 2", id, n)
		}
		twice += n - 1
	}
	if twice != duplicateCount {
		t.Errorf("%d duplicates, want %d", twice, duplicateCount)
	}
	for i, o := range orders {
		if originals[i] != o.id {
			t.Fatalf("message %d is %s, want %s: the orders are to stay in their order", i, originals[i], o.id)
		}
	}
}

func TestDuplicatesComeSoonAndLate(t *testing.T) {
	t.Parallel()
	orders, err := makeOrders(orderCount, 7)
	if err != nil {
		t.Fatal(err)
	}
	at := map[string]int{}
	soon, late := 0, 0
	for i, m := range withDuplicates(orders, duplicateCount, 7) {
		first, again := at[m.id]
		switch {
		case !again:
			at[m.id] = i
		case i-first <= 10:
			soon++
		case i-first > 100:
			late++
		}
	}
	if soon < 30 || late < 10 {
		t.Errorf("%d duplicates within ten messages and %d beyond a hundred, want at least 30 and 10", soon, late)
	}
}

func TestOrdersAreTheSameEachTimeAndJSON(t *testing.T) {
	t.Parallel()
	first, err := makeOrders(50, 1)
	if err != nil {
		t.Fatal(err)
	}
	again, err := makeOrders(50, 1)
	if err != nil {
		t.Fatal(err)
	}
	for i := range first {
		if first[i].id != again[i].id || !bytes.Equal(first[i].body, again[i].body) {
			t.Fatalf("order %d differs between two calls", i)
		}
		var o order
		if err := json.Unmarshal(first[i].body, &o); err != nil {
			t.Fatalf("order %d: %v", i, err)
		}
		if o.OrderID == "" || len(o.Items) == 0 || o.Amount <= 0 {
			t.Errorf("order %d is empty: %s", i, first[i].body)
		}
	}
}

func TestCountersAreReadFromTheMetrics(t *testing.T) {
	t.Parallel()
	const text = `# HELP inboxd_deliveries_total Deliveries by outcome.
# TYPE inboxd_deliveries_total counter
inboxd_deliveries_total{consumer="demo",outcome="deferred"} 0
inboxd_deliveries_total{consumer="demo",outcome="duplicate"} 41
inboxd_deliveries_total{consumer="demo",outcome="parked"} 2
inboxd_deliveries_total{consumer="demo",outcome="processed"} 1.002e+03
inboxd_deliveries_total{consumer="demo",outcome="returned"} 7
inboxd_in_flight{consumer="demo"} 3
`
	got, err := readCounters(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	want := counters{processed: 1002, duplicate: 41, parked: 2}
	if got != want {
		t.Errorf("counters are %+v, want %+v", got, want)
	}
	if got, want := got.settled(), 1045; got != want {
		t.Errorf("settled is %d, want %d", got, want)
	}
	if _, err := readCounters(strings.NewReader("up 1\n")); err == nil {
		t.Error("metrics of another program gave no error")
	}
}

func TestOnlyEveryEffectOnceSucceeds(t *testing.T) {
	t.Parallel()
	good := tally{orders: 1000, published: 1100, requests: 1004, effects: 1000, settledFirst: 480}
	for name, c := range map[string]struct {
		change func(*tally)
		ok     bool
	}{
		"all is well":        {func(*tally) {}, true},
		"an order is lost":   {func(t *tally) { t.effects = 999 }, false},
		"an effect too many": {func(t *tally) { t.effects = 1001 }, false},
		"a message is left":  {func(t *tally) { t.left = 1 }, false},
		"a message parked":   {func(t *tally) { t.secondLife.parked = 1 }, false},
		"the handler lies":   {func(t *tally) { t.requests = 999 }, false},
	} {
		tally := good
		c.change(&tally)
		if got := len(tally.problems()) == 0; got != c.ok {
			t.Errorf("%s: success is %v, want %v (%v)", name, got, c.ok, tally.problems())
		}
	}
}

func TestTheTableNamesEveryFigure(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	tally{
		orders: 1000, published: 1100, requests: 1004, effects: 998, settledFirst: 480,
		firstLife: counters{duplicate: 40}, secondLife: counters{duplicate: 57},
	}.print(&out)
	for _, want := range []string{"1,100", "1,004", "  97  ", "998", "480 before the kill", "620 after it", "6 had no record yet"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table does not hold %q:\n%s", want, out.String())
		}
	}
	if !strings.Contains(out.String(), "lost                        2") {
		t.Errorf("the table does not say that 2 are lost:\n%s", out.String())
	}
}

func TestProgressIsPlainLinesWithoutATerminal(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	s := &screen{w: &out}
	for range 100 {
		s.show("half way")
	}
	if got, want := out.String(), "half way\n"; got != want {
		t.Errorf("a hundred updates at once print %q, want %q", got, want)
	}
}

func TestProgressStaysInItsPlaceOnATerminal(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	s := &screen{w: &out, terminal: true}
	s.show("one")
	s.show("two")
	s.line("done")
	if got, want := out.String(), "\r\033[Kone\r\033[Ktwo\ndone\n"; got != want {
		t.Errorf("the terminal gets %q, want %q", got, want)
	}
}

func TestBar(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		done, total int
		want        string
	}{{0, 10, "░░░░"}, {5, 10, "██░░"}, {10, 10, "████"}, {15, 10, "████"}, {-1, 10, "░░░░"}, {0, 0, "░░░░"}} {
		if got := bar(c.done, c.total, 4); got != c.want {
			t.Errorf("bar(%d, %d) = %s, want %s", c.done, c.total, got, c.want)
		}
	}
}

func TestPasswordsAreNotPrinted(t *testing.T) {
	t.Parallel()
	if got := redact("amqp://shop:s3cret@broker:5672/"); strings.Contains(got, "s3cret") {
		t.Errorf("redact gives %s, want no password", got)
	}
}
