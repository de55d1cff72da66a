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
