package main

import (
	"context"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/inboxd/inboxd/internal/config"
	"github.com/inboxd/inboxd/internal/store/shared"
	"github.com/inboxd/inboxd/internal/testenv"
)

const sharedHeading = "## Shared mode"

// documented is one row of docs/metrics.md.
type documented struct {
	kind   string
	labels map[string][]string // the values, sorted; nil where the page names none
}

var (
	metricRow = regexp.MustCompile("(?m)^\\| `(inboxd_\\w+)` \\| (\\w+) \\|(.*?)\\| .+ \\|$")
	labelOf   = regexp.MustCompile("`(\\w+)`(?: \\(([^)]*)\\))?")
	word      = regexp.MustCompile("`([^`]+)`")
)

func page(t *testing.T) (ledger, shared map[string]documented) {
	t.Helper()
	raw, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	before, after, found := strings.Cut(string(raw), sharedHeading)
	if !found {
		t.Fatalf("docs/metrics.md: found no %q", sharedHeading)
	}
	rows := func(text string) map[string]documented {
		m := map[string]documented{}
		for _, row := range metricRow.FindAllStringSubmatch(text, -1) {
			d := documented{kind: row[2], labels: map[string][]string{}}
			for _, l := range labelOf.FindAllStringSubmatch(row[3], -1) {
				var values []string
				for _, v := range word.FindAllStringSubmatch(l[2], -1) {
					values = append(values, v[1])
				}
				slices.Sort(values)
				d.labels[l[1]] = values
			}
			m[row[1]] = d
		}
		return m
	}
	return rows(before), rows(after)
}

// registered builds the parts of a daemon with this configuration and returns
// its own metrics in the form of the page.
func registered(t *testing.T, yaml string) map[string]documented {
	t.Helper()
	cfg, err := config.Parse(strings.NewReader(yaml), os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	d := newDaemon(cfg, slog.New(slog.DiscardHandler))
	ctx := context.Background()
	st, err := d.openStore(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	t.Cleanup(d.closeLines)
	if err := d.buildLines(ctx, st); err != nil {
		t.Fatal(err)
	}
	families, err := d.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]documented{}
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "inboxd_") {
			continue
		}
		d := documented{kind: strings.ToLower(f.GetType().String()), labels: map[string][]string{}}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if v := d.labels[l.GetName()]; !slices.Contains(v, l.GetValue()) {
					d.labels[l.GetName()] = append(v, l.GetValue())
				}
			}
		}
		for _, v := range d.labels {
			slices.Sort(v)
		}
		all[f.GetName()] = d
	}
	return all
}

func compare(t *testing.T, got, want map[string]documented) {
	t.Helper()
	for name := range want {
		if _, ok := got[name]; !ok {
			t.Errorf("docs/metrics.md has %s, which the code does not register", name)
		}
	}
	for name, g := range got {
		w, ok := want[name]
		if !ok {
			t.Errorf("the code registers %s, which is not on docs/metrics.md where it belongs", name)
			continue
		}
		if g.kind != w.kind {
			t.Errorf("%s: got a %s, docs/metrics.md has a %s", name, g.kind, w.kind)
		}
		names := func(d documented) []string { return slices.Sorted(maps.Keys(d.labels)) }
		if !slices.Equal(names(g), names(w)) {
			t.Errorf("%s: got the labels %v, docs/metrics.md has %v", name, names(g), names(w))
		}
		for label, values := range w.labels {
			if values != nil && !slices.Equal(g.labels[label], values) {
				t.Errorf("%s: got the values %v of %s, docs/metrics.md has %v", name, g.labels[label], label, values)
			}
		}
	}
}

func sqliteStore(t *testing.T) string {
	return "store: {url: 'sqlite:" + filepath.Join(t.TempDir(), "inboxd.db") + "'}\n"
}

const oneConsumer = "consumers: [{name: c, queue: q, forward: {url: 'http://127.0.0.1:1/'}"

func TestPageOfMetricsIsWhatTheCodeRegisters(t *testing.T) {
	t.Parallel()
	want, _ := page(t)
	got := registered(t, sqliteStore(t)+oneConsumer+"}]\n")
	compare(t, got, want)
}

func TestPageOfMetricsHasThoseOfSharedMode(t *testing.T) {
	t.Parallel()
	url := testenv.DatabaseURL(t)
	ddl, err := shared.Schema(shared.SchemaOptions{Table: "inbox"})
	if err != nil {
		t.Fatal(err)
	}
	if err := testenv.Exec(url, ddl); err != nil {
		t.Fatal(err)
	}
	ledger, want := page(t)
	got := registered(t, sqliteStore(t)+oneConsumer+", inbox: {url: '"+url+"'}}]\n")
	maps.DeleteFunc(got, func(name string, _ documented) bool { _, ok := ledger[name]; return ok })
	compare(t, got, want)
}

// What alerts and panels name would otherwise be empty for ever, without a word.
func TestAlertsAndPanelsNameMetricsThatExist(t *testing.T) {
	t.Parallel()
	ledger, sharedMode := page(t)
	name := regexp.MustCompile(`\binboxd_[a-z0-9_]+`)
	suffix := regexp.MustCompile(`_(bucket|sum|count)$`)
	known := func(s string) bool {
		_, a := ledger[s]
		_, b := sharedMode[s]
		return a || b
	}
	for _, file := range []string{"../../deploy/prometheus/rules.yaml", "../../deploy/grafana/dashboards/inboxd.json"} {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		found := name.FindAllString(string(raw), -1)
		if len(found) == 0 {
			t.Errorf("%s names no metric", file)
		}
		for _, s := range found {
			if !known(s) && !known(suffix.ReplaceAllString(s, "")) {
				t.Errorf("%s names %s, which inboxd does not have", file, s)
			}
		}
	}
}
