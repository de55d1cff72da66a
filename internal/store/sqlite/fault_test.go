package sqlite

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/inboxd/inboxd/internal/inbox"
	"github.com/inboxd/inboxd/internal/store"
	"github.com/inboxd/inboxd/internal/store/storetest"
)

func key(id string) inbox.Key {
	return inbox.Key{Consumer: storetest.Consumer, ID: inbox.MessageID(id)}
}

// refused opens a store that must not open, and checks what the person reads.
func refused(t *testing.T, o Options, is error, words ...string) {
	t.Helper()
	s, err := Open(t.Context(), o, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err == nil {
		s.Close()
	}
	if !errors.Is(err, is) {
		t.Fatalf("got %v, want %v", err, is)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("got %q, want it to say %q", err, w)
		}
	}
}

func TestSecondOpenerIsRefusedAndToldTheHolder(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "inboxd.db")
	s := open(t, Options{Path: path})
	refused(t, Options{Path: path}, ErrInUse, fmt.Sprintf("process ID %d", os.Getpid()))
	if _, err := Check(t.Context(), Options{Path: path}); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), "process ID") {
		t.Errorf("Check beside a daemon: got %v, want ErrInUse and the holder", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	open(t, Options{Path: path})
}

func TestPlacesThatLoseRecordsAreRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	refused(t, Options{Path: filepath.Join(dir, "none", "inboxd.db")}, store.ErrSetup, "does not exist", "mount the volume")
	refused(t, Options{Path: ":memory:"}, store.ErrSetup, "not the path of a file")
	refused(t, Options{}, store.ErrSetup)

	garbage := filepath.Join(dir, "garbage.db")
	must(t, os.WriteFile(garbage, []byte(strings.Repeat("not a database ", 500)), 0o600))
	refused(t, Options{Path: garbage}, store.ErrSetup, "restore it from a backup")

	foreign := filepath.Join(dir, "foreign.db")
	db, err := openPool(foreign, 1, nil)
	must(t, err)
	_, err = db.ExecContext(t.Context(), "create table orders (id integer)")
	must(t, err)
	must(t, db.Close())
	refused(t, Options{Path: foreign}, store.ErrSetup, "another program")
	if got, err := Check(t.Context(), Options{Path: filepath.Join(dir, "new.db")}); err != nil || got[len(got)-1].Level != inbox.LevelWarn {
		t.Errorf("Check of a missing file: got %+v, %v, want a warning", got, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "new.db")); err == nil {
		t.Error("Check created the file")
	}
}

func TestNewerFileIsRefusedUnlessItSaysOtherwise(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "inboxd.db")
	s := open(t, Options{Path: path})
	_, err := s.write.ExecContext(t.Context(), "pragma user_version = 99")
	must(t, err)
	must(t, s.Close())
	s = open(t, Options{Path: path}) // min_version says that we may
	_, err = s.write.ExecContext(t.Context(), "update meta set value = '99' where key = 'min_version'")
	must(t, err)
	must(t, s.Close())
	refused(t, Options{Path: path}, store.ErrSetup, "newer inboxd")
}

func TestRemovedOrReplacedFileFailsClosed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		spoil func(path string) error
	}{
		{"removed", os.Remove},
		{"log removed", func(path string) error { return os.Remove(path + walSuffix) }},
		{"replaced", func(path string) error {
			b, err := os.ReadFile(path)
			return errors.Join(err, os.Remove(path), os.WriteFile(path, b, 0o600))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "inboxd.db")
			s := open(t, Options{Path: path})
			must(t, s.Record(t.Context(), inbox.Claim{Key: key("a")}))
			must(t, c.spoil(path))
			_, err := s.Claim(t.Context(), key("b"), inbox.Fingerprint{})
			for what, err := range map[string]error{
				"Claim":   err,
				"Record":  s.Record(t.Context(), inbox.Claim{Key: key("b")}),
				"Park":    s.Park(t.Context(), &inbox.ParkedMessage{Consumer: "c", State: inbox.StateParked}),
				"Healthy": s.Healthy(t.Context()),
			} {
				if !errors.Is(err, ErrReplaced) {
					t.Errorf("%s: got %v, want %v", what, err, ErrReplaced)
				}
			}
		})
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
