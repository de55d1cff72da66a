package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/inboxd/inboxd/internal/testenv"
)

// withServers pretends that both servers run, so that none is started.
func withServers(t *testing.T) {
	t.Helper()
	t.Setenv(testenv.AMQPVar, "amqp://broker.example/")
	t.Setenv(testenv.DatabaseVar, "postgres://db.example/")
}

func TestExitCodeIsTheCommands(t *testing.T) {
	withServers(t)
	for script, want := range map[string]int{
		"exit 0":        0,
		"exit 7":        7,
		"kill -KILL $$": 128 + 9,
		`test "$INBOXD_TEST_AMQP_URL" = amqp://broker.example/ || exit 3`: 0,
	} {
		var stderr bytes.Buffer
		if got := run([]string{"--", "sh", "-c", script}, &stderr); got != want {
			t.Errorf("%s: got exit code %d, want %d\n%s", script, got, want, stderr.String())
		}
	}
}

func TestSignalsReachTheCommand(t *testing.T) {
	withServers(t)
	var stderr bytes.Buffer
	script := `trap "exit 9" TERM; kill -TERM $PPID; while :; do sleep 0.05; done`
	if got := run([]string{"--", "sh", "-c", script}, &stderr); got != 9 {
		t.Errorf("exit code of a command that traps SIGTERM: got %d, want 9\n%s", got, stderr.String())
	}
}

func TestNoCommandIsAMistakeInUsage(t *testing.T) {
	var stderr bytes.Buffer
	if got := run(nil, &stderr); got != 2 || !strings.Contains(stderr.String(), "usage") {
		t.Errorf("got exit code %d and %q, want 2 and the usage", got, stderr.String())
	}
}
