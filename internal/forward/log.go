package forward

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// quietFor is how long a line is not repeated: an outage must not fill a disk.
const quietFor = 20 * time.Second

// quietLog writes changes of state, each kind of line once in a while. It never
// shows bodies, headers or credentials.
type quietLog struct {
	log *slog.Logger

	mu    sync.Mutex
	lines map[string]*quietLine
}

type quietLine struct {
	last       time.Time
	suppressed int
}

func newQuietLog(log *slog.Logger) *quietLog {
	return &quietLog{log: log, lines: map[string]*quietLine{}}
}

// say writes the line unless one of the same text was written just before.
func (q *quietLog) say(level slog.Level, every time.Duration, text string, attrs ...slog.Attr) {
	q.mu.Lock()
	l := q.lines[text]
	if l == nil {
		l = &quietLine{}
		q.lines[text] = l
	}
	if !l.last.IsZero() && time.Since(l.last) < every {
		l.suppressed++
		q.mu.Unlock()
		return
	}
	l.last = time.Now()
	if l.suppressed > 0 {
		attrs = append(attrs, slog.Int("suppressed", l.suppressed))
		l.suppressed = 0
	}
	q.mu.Unlock()
	//nolint:sloglint // the callers pass constants
	q.log.LogAttrs(context.Background(), level, text, attrs...)
}

func (q *quietLog) opened(c cause, why string, pause time.Duration, first bool) {
	level, text := slog.LevelWarn, "breaker opened"
	if c == setup || c == refusing {
		// Nothing gets better before a person acts.
		level, text = slog.LevelError, "breaker opened: the set-up looks wrong"
	}
	every := quietFor
	if !first {
		level, text, every = min(level, slog.LevelWarn), "breaker stays open", 3*quietFor
	}
	q.say(level, every, text, slog.String("reason", why), slog.Duration("pause", pause.Round(time.Millisecond)))
}

func (q *quietLog) closed(_ cause, down time.Duration) {
	q.say(slog.LevelInfo, quietFor, "breaker closed", slog.Duration("open_for", down.Round(time.Millisecond)))
}
