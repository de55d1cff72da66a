package sqlite

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/inboxd/inboxd/internal/inbox"
)

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
