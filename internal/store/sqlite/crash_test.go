package sqlite

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/inboxd/inboxd/internal/inbox"
)

const crashVar = "INBOXD_SQLITE_CRASH_PATH"

func TestMain(m *testing.M) {
	if path := os.Getenv(crashVar); path != "" {
		recordUntilKilled(path, os.Args[len(os.Args)-1])
	}
	os.Exit(m.Run())
}

// recordUntilKilled is the child: it records from many goroutines and names each
// key on standard output only after Record has returned.
func recordUntilKilled(path, round string) {
	s, err := Open(context.Background(), Options{Path: path}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	var wg sync.WaitGroup
	for w := range 32 {
		wg.Go(func() {
			for i := range 1 << 30 {
				id := fmt.Sprintf("%s-%d-%d", round, w, i)
				if err := s.Record(context.Background(), inbox.Claim{Key: key(id)}); err == nil {
					os.Stdout.WriteString(id + "\n")
				}
			}
		})
	}
	wg.Wait()
}

// Killed at random under load, again and again: every record that was answered
// is there, and the file is intact.
func TestKilledUnderLoadLosesNoRecord(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "inboxd.db")
	rounds := 20
	if testing.Short() {
		rounds = 3
	}
	var answered []string
	for round := range rounds {
		child := exec.Command(os.Args[0], fmt.Sprint("r", round))
		child.Env = append(os.Environ(), crashVar+"="+path)
		out, err := child.StdoutPipe()
		must(t, err)
		must(t, child.Start())
		lines := bufio.NewScanner(out)
		// The first record says that it is at work; then it has a random while.
		var kill *time.Timer
		for lines.Scan() {
			answered = append(answered, lines.Text())
			if kill == nil {
				kill = time.AfterFunc(rand.N(60*time.Millisecond), func() { _ = child.Process.Kill() })
			}
		}
		if kill == nil {
			t.Fatalf("round %d: the child recorded nothing: %v", round, child.Wait())
		}
		_ = child.Wait()
	}
	s := open(t, Options{Path: path})
	var integrity string
	must(t, s.write.QueryRowContext(t.Context(), "pragma integrity_check").Scan(&integrity))
	if integrity != "ok" {
		t.Errorf("integrity: got %s, want ok", integrity)
	}
	lost := 0
	for _, id := range answered {
		if c, err := s.Claim(t.Context(), key(id), inbox.Fingerprint{}); err != nil || c.Status != inbox.ClaimRecorded {
			lost++
		}
	}
	if lost > 0 {
		t.Errorf("lost: got %d of %d answered records, want none", lost, len(answered))
	}
	if !s.UncleanStop() {
		t.Error("after SIGKILL: got a clean stop")
	}
	must(t, s.Close())
	if s := open(t, Options{Path: path}); s.UncleanStop() {
		t.Error("after Close: got an unclean stop")
	}
	t.Logf("%d records answered in %d rounds", len(answered), rounds)
}
