package sqlite

import (
	"context"
	"errors"
	"fmt"
	"os"
)

const (
	reserveSuffix = ".reserve"
	reserveBytes  = 1 << 20
)

// keepReserve keeps space on the disk that nothing else can take. When the disk is
// full the write-ahead log is part of what fills it, and writing it back into
// the database needs space first; without the reserve the log would hold its
// own space for ever. The file is written, because a sparse one reserves
// nothing.
func (s *Store) keepReserve() error {
	path := s.opts.Path + reserveSuffix
	if info, err := os.Stat(path); err == nil && info.Size() == reserveBytes {
		return nil
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("keeping a reserve on the disk: %w", err)
	}
	_, err = f.Write(make([]byte, reserveBytes))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		_ = os.Remove(path) // a part of it is no help, and the log may need it
		return fmt.Errorf("keeping a reserve on the disk: %w", err)
	}
	return nil
}

// rescue gives the reserve to the log, so that it can be written back and cut,
// and takes it back from the space that this frees. An error says that the disk
// is still full.
func (s *Store) rescue(ctx context.Context) error {
	if err := os.Remove(s.opts.Path + reserveSuffix); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("freeing the reserve: %w", err)
	}
	conn, err := s.write.Conn(ctx)
	if err != nil {
		return fmt.Errorf("waiting to write: %w", err)
	}
	defer conn.Close()
	if _, err := conn.ExecContext(context.WithoutCancel(ctx), "pragma wal_checkpoint(truncate)"); err != nil {
		return fmt.Errorf("writing the log back: %w", s.wrote(err))
	}
	return s.keepReserve()
}
