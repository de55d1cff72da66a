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
	"golang.org/x/sys/unix"

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
	findings := Check(t.Context(), Options{Path: path})
	if last := findings[len(findings)-1]; last.Level != inbox.LevelOK || !strings.Contains(last.Detail, "process ID") {
		t.Errorf("Check beside a daemon: got %+v, want ok and the holder", last)
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
	if got := Check(t.Context(), Options{Path: filepath.Join(dir, "new.db")}); got[len(got)-1].Level != inbox.LevelWarn {
		t.Errorf("Check of a missing file: got %+v, want a warning", got)
	}
	if _, err := os.Stat(filepath.Join(dir, "new.db")); err == nil {
		t.Error("Check created the file")
	}
}

func TestNetworkFileSystemsAreKnown(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		magic uint32
		mount string
		want  string
	}{
		{unix.NFS_SUPER_MAGIC, "", "nfs"},
		{0xFE534D42, "", "smb2"},
		{0xFF534D42, "", "cifs"},
		{unix.CEPH_SUPER_MAGIC, "", "ceph"},
		{unix.FUSE_SUPER_MAGIC, "fuse.sshfs", "fuse.sshfs"},
		{unix.FUSE_SUPER_MAGIC, "fuse.gcsfuse", "fuse.gcsfuse"},
		{unix.FUSE_SUPER_MAGIC, "fuse.mergerfs", ""},
		{unix.EXT4_SUPER_MAGIC, "ext4", ""},
		{unix.TMPFS_MAGIC, "tmpfs", ""},
	} {
		if got := networkName(c.magic, func() string { return c.mount }); got != c.want {
			t.Errorf("%#x %q: got %q, want %q", c.magic, c.mount, got, c.want)
		}
	}
	if got := mountType(t.TempDir()); got == "" {
		t.Error("the mount of a real directory: got nothing")
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

// A small disk is filled by others; the store says so, loses nothing, and goes on
// by itself when there is room again.
func TestFullDiskFailsClosedAndRecovers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4m"); err != nil {
		t.Skipf("mounting needs privileges: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	path := filepath.Join(dir, "inboxd.db")
	s := open(t, Options{Path: path})
	recorded := 0
	put := func() error {
		err := s.Record(t.Context(), inbox.Claim{Key: key(fmt.Sprint("m", recorded))})
		if err == nil {
			recorded++
		}
		return err
	}
	must(t, put())
	fill(t, filepath.Join(dir, "ballast"))

	var err error
	for range 10000 {
		if err = put(); err != nil {
			break
		}
	}
	if err == nil || !strings.Contains(err.Error(), "disk is full") {
		t.Fatalf("on a full disk: got %v, want an error that says so", err)
	}
	if err := s.Healthy(t.Context()); err == nil {
		t.Error("Healthy on a full disk: got no error")
	}
	for i := range recorded { // what was answered stays
		if c, err := s.Claim(t.Context(), key(fmt.Sprint("m", i)), inbox.Fingerprint{}); err != nil || c.Status != inbox.ClaimRecorded {
			t.Fatalf("m%d: got status %d, %v, want recorded", i, c.Status, err)
		}
	}

	must(t, os.Remove(filepath.Join(dir, "ballast")))
	if err := s.Healthy(t.Context()); err != nil {
		t.Errorf("Healthy with room again: got %v", err)
	}
	must(t, put())
	must(t, s.Close())
	s = open(t, Options{Path: path})
	for i := range recorded {
		if _, err := s.Lookup(t.Context(), key(fmt.Sprint("m", i))); err != nil {
			t.Errorf("m%d after reopening: %v", i, err)
		}
	}
}

func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	must(t, err)
	defer f.Close()
	for size := 64 << 10; size >= 512; size /= 2 {
		for {
			if _, err := f.Write(make([]byte, size)); err != nil {
				break
			}
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
