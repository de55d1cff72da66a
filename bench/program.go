package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// scenario is what all programs of a comparison have in common.
type scenario struct {
	Queue       string  `json:"queue"` // quorum or classic
	Messages    int     `json:"messages"`
	Duplicates  float64 `json:"duplicates"` // share of the messages
	Size        int     `json:"size"`       // bytes of a body
	Concurrency int     `json:"concurrency"`
	Prefetch    int     `json:"prefetch"`
	DelayMS     int     `json:"handler_delay_ms"`
	// Defaults leaves inboxd's concurrency and prefetch to its defaults;
	// Concurrency and Prefetch then hold for the other programs alone.
	Defaults  bool `json:"defaults"`
	Consumers int  `json:"consumers"` // queues, each with a consumer of its own
	Replicas  int  `json:"replicas"`  // processes on the same queues
}

func (s scenario) String() string {
	text := fmt.Sprintf("%s queue, %d messages of %s, %.0f %% duplicates, %d in flight, prefetch %d, handler %d ms",
		s.Queue, s.Messages, bytesText(s.Size), s.Duplicates*100, s.Concurrency, s.Prefetch, s.DelayMS)
	if s.Defaults {
		text += ", inboxd with its default concurrency and prefetch"
	}
	if s.Consumers > 1 {
		text += fmt.Sprintf(", %d consumers", s.Consumers)
	}
	if s.Replicas > 1 {
		text += fmt.Sprintf(", %d replicas", s.Replicas)
	}
	return text
}

// program is one contestant.
type program struct {
	name   string
	store  string // of inboxd: sqlite or postgres
	dedups bool   // a duplicate must not reach the handler
	// anonymous: its requests carry no message ID, so they can be counted only.
	anonymous bool
	// rows: the handler commits a row for each message, as a real one does.
	rows bool
	args func(b *bench, s scenario, t task) (path string, args []string, err error)
}

// task is what one process of a program works on.
type task struct {
	dir, amqpURL, target, storeURL string
	// rowsURL is the handler's own database where the program is for one that
	// writes rows.
	rowsURL string
	queues  []string
	metrics string // address for inboxd's metrics
	// consumer names inboxd's consumers; a number is added where there are several.
	consumer string
}

// yardstick is the program that the others are compared with.
const yardstick = "bare"

func programs() []program {
	return []program{
		{name: yardstick, args: loopArgs()},
		{name: "bare-multiple", args: loopArgs("-multiple")},
		{name: "bare-fasthttp", args: loopArgs("-client", "fasthttp")},
		{name: "inboxd-sqlite", store: "sqlite", dedups: true, args: inboxdArgs("")},
		{name: "inboxd-postgres", store: "postgres", dedups: true, args: inboxdArgs("")},
		{name: "inboxd-postgres-leases", store: "postgres", dedups: true, args: inboxdArgs("  leases: always\n")},
		{name: "inboxd-postgres-noleases", store: "postgres", dedups: true, args: inboxdArgs("  leases: never\n")},
		{name: "bare-rows", rows: true, args: loopArgs()},
		{name: "inboxd-postgres-rows", store: "postgres", dedups: true, rows: true, args: inboxdArgs("")},
		{name: "inboxd-shared", store: "sqlite", dedups: true, rows: true, args: sharedArgs},
		{name: "inboxd-shared-leases", store: "postgres", dedups: true, rows: true, args: sharedArgs},
		{name: "watermill", args: watermillArgs()},
		{name: "watermill-dedup", dedups: true, args: watermillArgs("-dedup")},
	}
}

func programsNamed(names string) ([]program, error) {
	var chosen []program
	for _, name := range splitList(names) {
		known := false
		for _, p := range programs() {
			if p.name == name {
				chosen, known = append(chosen, p), true
			}
		}
		if !known {
			return nil, fmt.Errorf("no program is called %q", name)
		}
	}
	return chosen, nil
}

// externalProgram makes a program of NAME=COMMAND, for whatever is not built
// here. In the command {amqp}, {queue}, {url}, {database}, {concurrency} and
// {prefetch} are replaced; its words are separated by spaces, without a shell.
// A name that ends in -dedup must not let a duplicate through, one that ends in
// -anonymous need not send the message ID.
func externalProgram(spec string) (program, error) {
	name, command, ok := strings.Cut(spec, "=")
	words := strings.Fields(command)
	if !ok || name == "" || len(words) == 0 {
		return program{}, fmt.Errorf("-external %q: want NAME=COMMAND", spec)
	}
	return program{
		name: name, dedups: strings.HasSuffix(name, "-dedup"), anonymous: strings.HasSuffix(name, "-anonymous"),
		args: func(b *bench, s scenario, t task) (string, []string, error) {
			path, err := exec.LookPath(words[0])
			if err != nil {
				return "", nil, err
			}
			if path, err = filepath.Abs(path); err != nil {
				return "", nil, err
			}
			fill := strings.NewReplacer("{amqp}", t.amqpURL, "{queue}", t.queues[0], "{url}", t.target, "{database}", b.databaseURL,
				"{concurrency}", strconv.Itoa(s.Concurrency), "{prefetch}", strconv.Itoa(s.Prefetch))
			var args []string
			for _, w := range words[1:] {
				args = append(args, fill.Replace(w))
			}
			return path, args, nil
		},
	}, nil
}

func loopArgs(extra ...string) func(*bench, scenario, task) (string, []string, error) {
	return func(b *bench, s scenario, t task) (string, []string, error) {
		if len(t.queues) != 1 {
			return "", nil, errors.New("the bare loop takes one queue")
		}
		args := []string{
			"loop", "-amqp", t.amqpURL, "-queue", t.queues[0], "-url", t.target,
			"-concurrency", strconv.Itoa(s.Concurrency), "-prefetch", strconv.Itoa(s.Prefetch),
		}
		return b.self, append(args, extra...), nil
	}
}

func watermillArgs(extra ...string) func(*bench, scenario, task) (string, []string, error) {
	return func(b *bench, s scenario, t task) (string, []string, error) {
		args := []string{
			"-amqp", t.amqpURL, "-queue", t.queues[0], "-url", t.target,
			"-quorum=" + strconv.FormatBool(s.Queue == "quorum"),
			"-concurrency", strconv.Itoa(s.Concurrency), "-prefetch", strconv.Itoa(s.Prefetch),
		}
		return b.watermill, append(args, extra...), nil
	}
}

func inboxdArgs(storeExtra string) func(*bench, scenario, task) (string, []string, error) {
	return func(b *bench, s scenario, t task) (string, []string, error) {
		file := filepath.Join(t.dir, "inboxd.yaml")
		text := inboxdConfig(s, t, storeExtra, b.consumerExtra)
		return b.inboxd, []string{"run", "-c", file}, os.WriteFile(file, []byte(text), 0o600)
	}
}

// sharedArgs lets inboxd read the rows that the handler commits.
func sharedArgs(b *bench, s scenario, t task) (string, []string, error) {
	file := filepath.Join(t.dir, "inboxd.yaml")
	text := inboxdConfig(s, t, "", b.consumerExtra+"    inbox: {url: "+strconv.Quote(t.rowsURL)+"}\n")
	return b.inboxd, []string{"run", "-c", file}, os.WriteFile(file, []byte(text), 0o600)
}

// inboxdConfig writes what a user would: everything else keeps its default.
func inboxdConfig(s scenario, t task, storeExtra, consumerExtra string) string {
	var c strings.Builder
	fmt.Fprintf(&c, "broker:\n  url: %s\nstore:\n  url: %s\n%sconsumers:\n", t.amqpURL, t.storeURL, storeExtra)
	for i, queue := range t.queues {
		name := t.consumer
		if len(t.queues) > 1 {
			name += strconv.Itoa(i)
		}
		fmt.Fprintf(&c, "  - name: %s\n    queue: %s\n", name, queue)
		if !s.Defaults {
			fmt.Fprintf(&c, "    concurrency: %d\n    prefetch: %d\n",
				max(1, s.Concurrency/len(t.queues)), max(1, s.Prefetch/len(t.queues)))
		}
		c.WriteString(consumerExtra)
		fmt.Fprintf(&c, "    forward:\n      url: %s\n", t.target)
	}
	fmt.Fprintf(&c, "metrics: {listen: %q}\nadmin: {listen: \"127.0.0.1:0\"}\n", t.metrics)
	return c.String()
}

// bench is a session: the servers and the built programs.
type bench struct {
	*servers
	dir           string // temporary, removed at the end
	self          string
	inboxd        string
	watermill     string
	consumerExtra string // further lines of configuration for each consumer
}

// build compiles the programs that are not this one. The product is built as
// its own module, with the versions that it is released with.
func (b *bench) build(ctx context.Context, inboxd string) error {
	var err error
	if b.self, err = os.Executable(); err != nil {
		return err
	}
	here, err := moduleDir(ctx)
	if err != nil {
		return err
	}
	b.watermill = filepath.Join(b.dir, "watermill")
	if err := goBuild(ctx, here, b.watermill, "./peers/watermill"); err != nil {
		return err
	}
	if b.inboxd = inboxd; inboxd == "" {
		b.inboxd = filepath.Join(b.dir, "inboxd")
		return goBuild(ctx, filepath.Dir(here), b.inboxd, "./cmd/inboxd")
	}
	b.inboxd, err = filepath.Abs(inboxd)
	return err
}

func moduleDir(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Path}} {{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("finding the module: %w", err)
	}
	path, dir, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	if !strings.HasSuffix(path, "/bench") {
		return "", errors.New("run this in the directory bench")
	}
	return dir, nil
}

func goBuild(ctx context.Context, dir, out, pkg string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", out, pkg)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building %s: %w: %s", pkg, err, text)
	}
	return nil
}

// freeAddr returns a loopback address that nothing listens on just now.
func freeAddr() (string, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer ln.Close()
	return ln.Addr().String(), nil
}
