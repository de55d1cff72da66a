package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// slowAnswer is how long one read or write of a streamed body may take.
const slowAnswer = 30 * time.Second

// Serve answers on ln until ctx ends, then lets requests finish for at most
// grace. Every step of a connection has a time limit and headers have a size
// limit, so that no client holds the daemon.
func Serve(ctx context.Context, ln net.Listener, h http.Handler, grace time.Duration, log *slog.Logger) error {
	srv := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       slowAnswer,
		WriteTimeout:      slowAnswer,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(ln) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serving %s: %w", ln.Addr(), err)
	case <-ctx.Done():
	}
	sctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	if err := srv.Shutdown(sctx); err != nil {
		_ = srv.Close() // whoever still reads has had the time to
	}
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving %s: %w", ln.Addr(), err)
	}
	return nil
}

// moreTime gives a streamed request or answer another slowAnswer. Servers that
// know no deadlines (tests) have none to move.
func moreTime(w http.ResponseWriter) {
	c := http.NewResponseController(w)
	until := time.Now().Add(slowAnswer)
	_ = c.SetReadDeadline(until)
	_ = c.SetWriteDeadline(until)
}
