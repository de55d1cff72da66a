package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"
)

// sessionFlags are the flags of every command that measures.
type sessionFlags struct {
	servers                     serverFlags
	inboxd, json, consumerExtra *string
}

func addSessionFlags(fs *flag.FlagSet) sessionFlags {
	return sessionFlags{
		servers:       addServerFlags(fs),
		inboxd:        fs.String("inboxd", "", "inboxd binary to measure; built from the source where empty"),
		json:          fs.String("json", "", "file for every run's figures"),
		consumerExtra: fs.String("consumer-config", "", `more configuration for each consumer of inboxd, as "key: value; key: value"`),
	}
}

// withSession starts servers, builds the programs, calls do, and removes all
// of it whatever happens.
func withSession(ctx context.Context, f sessionFlags, out io.Writer, do func(*bench) error) (err error) {
	stopWithGoRun()
	b := &bench{}
	for line := range strings.SplitSeq(*f.consumerExtra, ";") {
		if line = strings.TrimSpace(line); line != "" {
			b.consumerExtra += "    " + line + "\n"
		}
	}
	if b.dir, err = os.MkdirTemp("", "inboxd-bench-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	fmt.Fprintln(out, "Building the programs and starting broker and database…")
	b.servers, err = startServers(ctx, f.servers)
	defer func() { err = errors.Join(err, b.servers.stop()) }()
	if err != nil {
		return err
	}
	if err := b.build(ctx, *f.inboxd); err != nil {
		return err
	}
	e := b.environment()
	fmt.Fprintf(out, "%s, %d cores, %s; RabbitMQ %s; PostgreSQL %s, fsync %s; %s\n",
		e.CPU, e.Cores, e.Kernel, e.RabbitMQ, e.PostgreSQL, e.Fsync, e.Go)
	if b.fsync != "on" {
		fmt.Fprintln(out, "WARNING: PostgreSQL runs without fsync: its figures mean nothing.")
	}
	if b.brokerPID == 0 || b.dbPID == 0 {
		fmt.Fprintln(out, "Broker or database run elsewhere: their CPU time is not known.")
	}
	return do(b)
}

// environment is what a figure depends on besides the programs.
type environment struct {
	Time       time.Time `json:"time"`
	CPU        string    `json:"cpu"`
	Cores      int       `json:"cores"`
	Kernel     string    `json:"kernel"`
	Go         string    `json:"go"`
	Commit     string    `json:"commit"`
	RabbitMQ   string    `json:"rabbitmq"`
	PostgreSQL string    `json:"postgresql"`
	Fsync      string    `json:"fsync"`
	Load       string    `json:"load_before"`
}

func (b *bench) environment() environment {
	return environment{
		Time: time.Now().UTC(), CPU: cpuModel(), Cores: runtime.NumCPU(), Go: runtime.Version(),
		Kernel: commandLine("uname", "-sr"), Commit: commandLine("git", "describe", "--always", "--dirty"),
		RabbitMQ: b.brokerVersion, PostgreSQL: b.dbVersion, Fsync: b.fsync, Load: firstField("/proc/loadavg"),
	}
}

func cpuModel() string {
	b, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(b)) {
		if name, value, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

func commandLine(name string, args ...string) string {
	out, err := exec.Command(name, args...).Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

func firstField(file string) string {
	b, _ := os.ReadFile(file)
	first, _, _ := strings.Cut(string(b), " ")
	return first
}

// writeJSON keeps the figures for later comparison; no file name, no file.
func writeJSON(file string, e environment, kind string, figures any) error {
	if file == "" {
		return nil
	}
	text, err := json.MarshalIndent(map[string]any{"environment": e, "kind": kind, "figures": figures}, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}
