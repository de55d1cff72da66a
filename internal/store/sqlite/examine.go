package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/inboxd/inboxd/internal/inbox"
	"github.com/inboxd/inboxd/internal/store"
)

const lowSpace = 256 << 20

// Check examines the place of a store, as Examine does, without creating anything
// and without disturbing a daemon that uses it. Its errors are those of Open.
func Check(ctx context.Context, opts Options) ([]inbox.Finding, error) {
	if err := checkPlace(opts.Path); err != nil {
		return nil, err
	}
	if _, err := os.Stat(opts.Path); errors.Is(err, fs.ErrNotExist) {
		dir := filepath.Dir(opts.Path)
		if err := unix.Access(dir, unix.W_OK); err != nil {
			return nil, fmt.Errorf("%w: the directory %s cannot be written by the user that runs inboxd: %w", store.ErrSetup, dir, err)
		}
		subject := "store sqlite:" + opts.Path
		return []inbox.Finding{space(subject, opts.Path), {
			Level: inbox.LevelWarn, Subject: subject,
			Detail: "the file does not exist; the first run creates an empty inbox",
			Remedy: "right at the first start only: if there was an inbox before, mount its volume",
		}}, nil
	}
	s, err := Open(ctx, opts, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		return nil, err
	}
	defer s.Close()
	return s.Examine(ctx), nil
}

// Examine tells what a person should know about the store.
func (s *Store) Examine(ctx context.Context) []inbox.Finding {
	subject := "store " + s.Describe()
	if err := s.Healthy(ctx); err != nil {
		return []inbox.Finding{{Level: inbox.LevelFail, Subject: subject, Detail: err.Error(), Remedy: "see the message"}}
	}
	findings := []inbox.Finding{{Level: inbox.LevelOK, Subject: subject, Detail: "identity " + s.id}, space(subject, s.opts.Path)}
	damage, err := quickCheck(ctx, s.desk)
	switch {
	case err != nil && ctx.Err() == nil, damage != "":
		findings = append(findings, inbox.Finding{
			Level: inbox.LevelFail, Subject: subject,
			Detail: fmt.Sprintf("integrity check: %s %v", damage, err), Remedy: "restore the file from a backup",
		})
	case err == nil:
		findings = append(findings, inbox.Finding{Level: inbox.LevelOK, Subject: subject, Detail: "integrity check passed"})
	}
	if oldest, err := s.oldest(ctx); err == nil && !oldest.IsZero() && time.Since(oldest) > 2*s.opts.Retention {
		findings = append(findings, inbox.Finding{
			Level: inbox.LevelWarn, Subject: subject,
			Detail: fmt.Sprintf("the oldest record is of %s, far beyond the retention of %v", oldest.Format(time.RFC3339), s.opts.Retention),
			Remedy: "right after a long stop; otherwise look for errors of the retention in the log",
		})
	}
	return findings
}

func (s *Store) oldest(ctx context.Context) (time.Time, error) {
	var at int64
	err := s.desk.QueryRowContext(ctx, "select coalesce(min(recorded_at), 0) from processed").Scan(&at)
	return store.FromMillis(at), err
}

func space(subject, path string) inbox.Finding {
	var st unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(path), &st); err != nil {
		return inbox.Finding{Level: inbox.LevelWarn, Subject: subject, Detail: "free space is not known: " + err.Error(), Remedy: "watch the disk"}
	}
	free := uint64(st.Bavail) * uint64(st.Bsize) //nolint:unconvert // signed on some systems
	f := inbox.Finding{Level: inbox.LevelOK, Subject: subject, Detail: fmt.Sprintf("%d MiB free", free>>20)}
	if free < lowSpace {
		f.Level, f.Remedy = inbox.LevelWarn, "make room: a full disk stops consuming"
	}
	return f
}
