package sqlite

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	driver "modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"

	"github.com/inboxd/inboxd/internal/inbox"
	"github.com/inboxd/inboxd/internal/store"
)

// code returns SQLite's extended result code, 0 for any other error.
func code(err error) int {
	var e *driver.Error
	if errors.As(err, &e) {
		return e.Code()
	}
	return 0
}

// setupError marks the errors of Open that a restart does not cure.
func setupError(err error) error {
	switch primary := code(err) & 0xff; {
	case err == nil:
		return nil
	case primary == lib.SQLITE_NOTADB, primary == lib.SQLITE_CORRUPT:
		return fmt.Errorf("%w: the file is no intact SQLite database (%w): restore it from a backup, or move it away to start with an empty inbox, which forgets what was processed", store.ErrSetup, err)
	case primary == lib.SQLITE_READONLY, primary == lib.SQLITE_CANTOPEN, primary == lib.SQLITE_PERM,
		errors.Is(err, fs.ErrPermission), errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: %w: the file and its directory must be writable by inboxd", store.ErrSetup, err)
	}
	return err
}

// usable returns the reason why nothing may be written or believed any more.
func (s *Store) usable() error {
	if broken := s.broken.Load(); broken != nil {
		return *broken
	}
	return nil
}

// wrote notes the outcome of a write and turns it into the caller's answer. A
// write counts only while the file still has its name.
func (s *Store) wrote(err error) error {
	if err == nil {
		s.lastWrite.Store(time.Now().UnixMilli())
		return s.files.check()
	}
	if errors.Is(err, inbox.ErrNotFound) {
		return err
	}
	switch c := code(err); {
	case c == lib.SQLITE_IOERR_FSYNC, c == lib.SQLITE_IOERR_DIR_FSYNC:
		// The kernel forgets what it could not write: a second fsync would
		// succeed and mean nothing. Only opening the file again tells.
		broken := fmt.Errorf("%w: what was written last may be lost; check the disk and restart inboxd", err)
		s.broken.Store(&broken)
		return broken
	case c&0xff == lib.SQLITE_CORRUPT, c&0xff == lib.SQLITE_NOTADB:
		broken := fmt.Errorf("the file is damaged: %w: stop inboxd and restore it from a backup, or move it away to start with an empty inbox", err)
		s.broken.Store(&broken)
		return broken
	case c&0xff == lib.SQLITE_FULL:
		s.writeFailed.Store(true)
		return fmt.Errorf("the disk is full: %w", err)
	case c&0xff == lib.SQLITE_IOERR, c&0xff == lib.SQLITE_READONLY:
		s.writeFailed.Store(true)
	}
	return err
}
