// Package deploy holds what inboxd is deployed with; the tests keep it in step
// with the daemon.
package deploy

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/inboxd/inboxd/internal/config"
)

// contract is every metric that dashboards and alerts may rely on.
var contract = []string{
	"inboxd_deliveries_total", "inboxd_parked_total", "inboxd_parked_messages",
	"inboxd_forward_requests_total", "inboxd_forward_duration_seconds",
	"inboxd_in_flight", "inboxd_oldest_in_flight_seconds",
	"inboxd_store_duration_seconds", "inboxd_store_errors_total", "inboxd_store_batch_size",
	"inboxd_records_deleted_total", "inboxd_duplicate_age_seconds", "inboxd_mismatches_total",
	"inboxd_consuming", "inboxd_breaker_open", "inboxd_broker_connected", "inboxd_broker_sessions_total",
	"inboxd_build_info",
}

// files returns the paths under deploy that end in one of the given ways.
func files(t *testing.T, endings ...string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && slices.Contains(endings, filepath.Ext(path)) {
			found = append(found, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(found) == 0 {
		t.Fatalf("found no file that ends in %v", endings)
	}
	return found
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// documents parses every document of a YAML file.
func documents(t *testing.T, path string) []map[string]any {
	t.Helper()
	dec := yaml.NewDecoder(bytes.NewReader(read(t, path)))
	var docs []map[string]any
	for {
		var doc map[string]any
		err := dec.Decode(&doc)
		if errors.Is(err, io.EOF) {
			return docs
		}
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		docs = append(docs, doc)
	}
}

func TestEveryFileParses(t *testing.T) {
	t.Parallel()
	for _, path := range files(t, ".yaml") {
		if docs := documents(t, path); len(docs) == 0 {
			t.Errorf("%s: got no document, want at least one", path)
		}
	}
	for _, path := range files(t, ".json") {
		if !json.Valid(read(t, path)) {
			t.Errorf("%s is not JSON", path)
		}
	}
}

func TestConfigurationsAreValid(t *testing.T) {
	t.Parallel()
	secrets, err := filepath.Abs("compose/secrets")
	if err != nil {
		t.Fatal(err)
	}
	mounted := regexp.MustCompile(`/run/secrets/(inboxd/)?`)
	n := 0
	for _, path := range files(t, ".yaml") {
		if filepath.Base(path) != "inboxd.yaml" || strings.Contains(path, "grafana") {
			continue
		}
		n++
		here := mounted.ReplaceAll(read(t, path), []byte(secrets+"/"))
		if _, err := config.Parse(bytes.NewReader(here), os.LookupEnv); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	if n != 3 {
		t.Errorf("configurations found: got %d, want 3", n)
	}
}

func TestEveryMetricNamedHereExists(t *testing.T) {
	t.Parallel()
	name := regexp.MustCompile(`\binboxd_[a-z0-9_]+`)
	named := map[string]bool{}
	for _, path := range []string{"prometheus/rules.yaml", "grafana/dashboards/inboxd.json"} {
		for _, found := range name.FindAllString(string(read(t, path)), -1) {
			metric := found
			if !slices.Contains(contract, metric) {
				metric = regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(metric, "")
			}
			if !slices.Contains(contract, metric) {
				t.Errorf("%s names %s, which inboxd does not have", path, found)
			}
			named[metric] = true
		}
	}
	for _, metric := range contract {
		if !named[metric] {
			t.Errorf("%s is on no panel and in no alert", metric)
		}
	}
}

// The contract above is worth nothing where the code calls a metric otherwise.
func TestContractIsWhatTheCodeRegisters(t *testing.T) {
	t.Parallel()
	var source strings.Builder
	for _, dir := range []string{"../internal", "../cmd"} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			source.Write(read(t, path))
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, metric := range contract {
		if !strings.Contains(source.String(), `"`+metric+`"`) {
			t.Errorf("no code registers %s", metric)
		}
	}
}

func TestEveryAlertSaysWhatToDo(t *testing.T) {
	t.Parallel()
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert               string
				Labels, Annotations map[string]string
			}
		}
	}
	if err := yaml.Unmarshal(read(t, "prometheus/rules.yaml"), &rules); err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			n++
			if r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("%s: got annotations %v, want a summary and a description", r.Alert, r.Annotations)
			}
			if s := r.Labels["severity"]; s != "page" && s != "ticket" {
				t.Errorf("%s: got severity %q, want page or ticket", r.Alert, s)
			}
		}
	}
	if n == 0 {
		t.Error("found no alert")
	}
}

func TestImagesHaveAVersion(t *testing.T) {
	t.Parallel()
	image := regexp.MustCompile(`(?m)^\s*(?:- )?(?:image:|FROM) *(\S+)`)
	for _, path := range append(files(t, ".yaml"), "../Dockerfile") {
		for _, m := range image.FindAllStringSubmatch(string(read(t, path)), -1) {
			_, tag, ok := strings.Cut(m[1][strings.LastIndexByte(m[1], '/')+1:], ":")
			if !ok || tag == "latest" {
				t.Errorf("%s: got image %s, want one with a version", path, m[1])
			}
		}
	}
}

// workload is the part of a Deployment or StatefulSet that these tests look at.
type workload struct {
	Kind string
	Spec struct {
		Replicas int
		Template struct {
			Spec struct {
				AutomountServiceAccountToken  *bool `yaml:"automountServiceAccountToken"`
				TerminationGracePeriodSeconds int   `yaml:"terminationGracePeriodSeconds"`
				SecurityContext               struct {
					RunAsNonRoot bool `yaml:"runAsNonRoot"`
					RunAsUser    int  `yaml:"runAsUser"`
				} `yaml:"securityContext"`
				Containers []container
				Init       []container `yaml:"initContainers"`
			}
		}
	}
}

type container struct {
	Name            string
	RestartPolicy   string `yaml:"restartPolicy"`
	SecurityContext struct {
		AllowPrivilegeEscalation *bool `yaml:"allowPrivilegeEscalation"`
		ReadOnlyRootFilesystem   bool  `yaml:"readOnlyRootFilesystem"`
		Capabilities             struct{ Drop []string }
	} `yaml:"securityContext"`
	Lifecycle struct {
		PreStop map[string]any `yaml:"preStop"`
	}
}

func TestPodsRunWithoutPrivilegesAndDrainBeforeTheirEnd(t *testing.T) {
	t.Parallel()
	for path, kind := range map[string]string{
		"kubernetes/base/deployment.yaml":    "Deployment",
		"kubernetes/sqlite/statefulset.yaml": "StatefulSet",
	} {
		dec := yaml.NewDecoder(bytes.NewReader(read(t, path)))
		var w workload
		for w.Kind != kind {
			w = workload{}
			if err := dec.Decode(&w); err != nil {
				t.Fatalf("%s: looking for a %s: %v", path, kind, err)
			}
		}
		pod := w.Spec.Template.Spec
		if !pod.SecurityContext.RunAsNonRoot || pod.SecurityContext.RunAsUser == 0 {
			t.Errorf("%s: got %+v, want a user by number that is not root", path, pod.SecurityContext)
		}
		if pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken {
			t.Errorf("%s: mounts a token that nobody needs", path)
		}
		if pod.TerminationGracePeriodSeconds <= 30 {
			t.Errorf("%s: got a grace period of %d s, want more than the drain may take", path, pod.TerminationGracePeriodSeconds)
		}
		if len(pod.Init) != 1 || pod.Init[0].Name != "inboxd" || pod.Init[0].RestartPolicy != "Always" {
			t.Errorf("%s: inboxd is no native sidecar: got %+v", path, pod.Init)
		}
		for _, c := range append(pod.Init, pod.Containers...) {
			s := c.SecurityContext
			if s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation || !s.ReadOnlyRootFilesystem || !slices.Equal(s.Capabilities.Drop, []string{"ALL"}) {
				t.Errorf("%s: container %s: got %+v, want it locked down", path, c.Name, s)
			}
			if len(c.Lifecycle.PreStop) == 0 {
				t.Errorf("%s: container %s has no preStop", path, c.Name)
			}
		}
		if kind == "StatefulSet" && w.Spec.Replicas != 1 {
			t.Errorf("%s: got %d replicas on SQLite, want 1", path, w.Spec.Replicas)
		}
	}
}
