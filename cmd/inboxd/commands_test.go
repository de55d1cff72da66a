package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
)

func TestHelpOfEveryCommandIsNoError(t *testing.T) {
	t.Parallel()
	asked := [][]string{{"help"}, {"--help"}, {"schema", "ledger", "--help"}, {"schema", "shared", "--help"}}
	for _, c := range commands() {
		asked = append(asked, []string{c.name, "--help"})
	}
	for _, args := range asked {
		var stdout, stderr bytes.Buffer
		code := run(context.Background(), args, strings.NewReader(""), &stdout, &stderr)
		if code != exitOK || stdout.Len() == 0 || stderr.Len() > 0 {
			t.Errorf("inboxd %s: got code %d, %d bytes of output and the errors %q, want code 0, output and no error",
				strings.Join(args, " "), code, stdout.Len(), stderr.String())
		}
	}
}

func TestMistakesOnTheCommandLineAreUsageErrors(t *testing.T) {
	t.Setenv("INBOXD_CONFIG", "")
	for _, args := range [][]string{
		{},
		{"rnu"},
		{"run"},
		{"run", "-c", "/nonexistent/inboxd.yaml"},
		{"run", "--nope"},
		{"check", "inboxd.yaml"},
		{"schema"},
		{"schema", "other"},
		{"schema", "ledger", "mysql"},
		{"parked", "lst"},
		{"pause"},
		{"verify"},
	} {
		var stdout, stderr bytes.Buffer
		code := run(context.Background(), args, strings.NewReader(""), &stdout, &stderr)
		if code != exitUsage || stdout.Len() > 0 || stderr.Len() == 0 {
			t.Errorf("inboxd %s: got code %d, the output %q and %d bytes of errors, want code 2, no output and an error",
				strings.Join(args, " "), code, stdout.String(), stderr.Len())
		}
	}
}

func TestAddressOfTheDaemonNeedsNoScheme(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                       "",
		"127.0.0.1:9321":         "http://127.0.0.1:9321",
		"http://127.0.0.1:9321":  "http://127.0.0.1:9321",
		"https://admin.internal": "https://admin.internal",
	} {
		if got := withScheme(in); got != want {
			t.Errorf("withScheme(%q): got %q, want %q", in, got, want)
		}
	}
}
