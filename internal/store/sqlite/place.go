package sqlite

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/inboxd/inboxd/internal/store"
)

const (
	lockSuffix = ".lock"
	walSuffix  = "-wal"
	shmSuffix  = "-shm"

	// minVersion is the first SQLite without the defect that could lose
	// committed rows when the log is reset.
	minVersion = "3.51.3"
	// walLimit is the size to which the log is cut back.
	walLimit = 64 << 20
)

// ErrInUse means that another process has the file open.
var ErrInUse = errors.New("in use by another process")

// ErrReplaced means that the file is no longer the one that was opened. What is
// written to it would be lost with the process.
var ErrReplaced = errors.New("removed or replaced while it was in use")

// checkPlace refuses what would work at first and lose records later.
func checkPlace(path string) error {
	if path == "" || strings.HasPrefix(path, ":") || strings.HasPrefix(path, "file:") {
		return fmt.Errorf("%w: %q is not the path of a file: an inbox must outlive the process", store.ErrSetup, path)
	}
	dir := filepath.Dir(path)
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: the directory %s does not exist: create it, or mount the volume that should be there", store.ErrSetup, dir)
	case err != nil:
		return fmt.Errorf("%w: %w", store.ErrSetup, err)
	case !info.IsDir():
		return fmt.Errorf("%w: %s is not a directory", store.ErrSetup, dir)
	}
	if name := networkFileSystem(dir); name != "" {
		return fmt.Errorf("%w: %s is on a network file system (%s), where file locks and shared memory cannot be trusted: use a local disk, or PostgreSQL",
			store.ErrSetup, dir, name)
	}
	return nil
}

// lockFile keeps every other process out for as long as the file stays open. It
// is never removed: a second opener could otherwise lock a file that is gone.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, setupError(err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: locking %s: %w", store.ErrSetup, path, err)
		}
		holder := "whose process ID is not known"
		if b, err := io.ReadAll(io.LimitReader(f, 32)); err == nil && len(b) > 0 {
			holder = "process ID " + strings.TrimSpace(string(b))
		}
		return nil, fmt.Errorf("%w: another inboxd (%s) has %s locked: one file serves one daemon; use PostgreSQL for several",
			ErrInUse, holder, path)
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("writing %s: %w", path, err), f.Close())
	}
	return f, nil
}

// createFile creates the file for us alone (it will hold messages) and reports
// whether it was missing or empty.
func createFile(path string) (created bool, err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return false, setupError(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return false, err
	}
	return info.Size() == 0, nil
}

func nonEmpty(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Size() > 0
}

// files notices when the database is removed or replaced underneath us: SQLite
// would go on writing into a file that has no name any more.
type files struct {
	paths [3]string
	ids   [3]fileID
}

type fileID struct{ dev, ino uint64 }

func watch(path string) (*files, error) {
	f := &files{paths: [3]string{path, path + walSuffix, path + shmSuffix}}
	for i, p := range f.paths {
		id, err := identify(p)
		if err != nil {
			return nil, err
		}
		f.ids[i] = id
	}
	return f, nil
}

func (f *files) check() error {
	for i, p := range f.paths {
		id, err := identify(p)
		if err != nil || id != f.ids[i] {
			return fmt.Errorf("%s was %w: nothing is recorded any more; put the file back and restart inboxd", p, ErrReplaced)
		}
	}
	return nil
}

func identify(path string) (fileID, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return fileID{}, fmt.Errorf("%s: %w", path, err)
	}
	return fileID{uint64(st.Dev), st.Ino}, nil //nolint:unconvert // Dev is signed on some systems
}
