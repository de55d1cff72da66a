package config

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

const day = 24 * time.Hour

// parseDuration reads what time.ParseDuration reads, and whole days in front of
// it: 30s, 1h30m, 7d, 1d12h.
func parseDuration(s string) (time.Duration, error) {
	if _, err := strconv.ParseFloat(s, 64); err == nil {
		return 0, fmt.Errorf("needs a unit: %ss, %sms, %sm or %sh", s, s, s, s)
	}
	var days time.Duration
	rest := s
	if number, after, ok := strings.Cut(s, "d"); ok {
		n, err := strconv.ParseUint(number, 10, 16)
		if err != nil {
			return 0, errors.New("is not a duration such as 500ms, 30s, 1h30m or 7d")
		}
		days, rest = time.Duration(n)*day, after
		if rest == "" {
			return days, nil
		}
	}
	d, err := time.ParseDuration(rest)
	if err != nil || days > 0 && d < 0 || d > math.MaxInt64-days {
		return 0, errors.New("is not a duration such as 500ms, 30s, 1h30m or 7d")
	}
	return days + d, nil
}

// formatDuration is time.Duration's String without its zeros: 168h, not
// 168h0m0s.
func formatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}

// auto is what the daemon finds out by itself.
const auto = "auto"

// AutoSize is a Size, or SizeAuto.
type AutoSize Size

// SizeAuto is written as auto.
const SizeAuto AutoSize = 0

// String returns s as the file has it.
func (s AutoSize) String() string {
	if s == SizeAuto {
		return auto
	}
	return Size(s).String()
}

// MarshalText makes encoders print what String returns.
func (s AutoSize) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

func (s *AutoSize) parse(text string) error {
	if text == auto {
		*s = SizeAuto
		return nil
	}
	n, err := parseSize(text)
	if err == nil && n == 0 {
		err = errors.New("must be auto or more than zero")
	}
	*s = AutoSize(n)
	return err
}

// Prefetch is a number of messages, or PrefetchAuto.
type Prefetch int

// PrefetchAuto is written as auto: the prefetch follows the handler's speed.
const PrefetchAuto Prefetch = -1

// String returns p as the file has it.
func (p Prefetch) String() string {
	if p == PrefetchAuto {
		return auto
	}
	return strconv.Itoa(int(p))
}

// MarshalText makes encoders print what String returns.
func (p Prefetch) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

func (p *Prefetch) parse(text string) error {
	if text == auto {
		*p = PrefetchAuto
		return nil
	}
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		return errors.New("is neither auto nor a whole number")
	}
	if n < 0 {
		n = 0 // not to be taken for PrefetchAuto; as wrong as it was
	}
	*p = Prefetch(n)
	return nil
}

const (
	// autoLeast and autoMost times the concurrency bound an automatic prefetch.
	autoLeast, autoMost = 2, 16
	// autoCeiling is where more messages in hand stop to help.
	autoCeiling = 1024
)

// PrefetchBounds returns between what the prefetch moves; equal where it is fixed.
// It is where requests go one after the other: who wants that wants order too, and
// a change of the prefetch could disturb it.
func (c Consumer) PrefetchBounds() (least, most int) {
	if c.Prefetch != PrefetchAuto {
		return int(c.Prefetch), int(c.Prefetch)
	}
	least = min(autoLeast*c.Concurrency, maxPrefetch)
	if c.Concurrency == 1 {
		return least, least
	}
	return least, max(least, min(autoMost*c.Concurrency, autoCeiling))
}

// Size is a number of bytes.
type Size int64

var units = []struct {
	name  string
	bytes int64
}{
	{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}, {"kB", 1e3}, {"B", 1},
}

func parseSize(s string) (Size, error) {
	for _, u := range units {
		number, ok := strings.CutSuffix(s, u.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(number), 10, 64)
		if err != nil || n < 0 || n > math.MaxInt64/u.bytes {
			break
		}
		return Size(n * u.bytes), nil
	}
	if _, err := strconv.ParseFloat(s, 64); err == nil {
		return 0, fmt.Errorf("needs a unit: %sB, %sKiB or %sMiB", s, s, s)
	}
	return 0, errors.New("is not a size such as 512KB, 16MiB or 1GiB")
}

// String returns s in the largest unit that needs no fraction.
func (s Size) String() string {
	for _, u := range units {
		if s != 0 && int64(s)%u.bytes == 0 {
			return strconv.FormatInt(int64(s)/u.bytes, 10) + u.name
		}
	}
	return "0B"
}

// MarshalText makes encoders print what String returns.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

func (s *Size) parse(text string) (err error) {
	*s, err = parseSize(text)
	return err
}
