package forward

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
)

// verdictOf is the contract's answer table. 1xx never gets here but for 101,
// which means that the other side speaks no HTTP any more.
func verdictOf(status int) inbox.Verdict {
	switch status {
	case http.StatusConflict, http.StatusTooEarly:
		return inbox.Busy
	case http.StatusRequestTimeout, http.StatusTooManyRequests,
		http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return inbox.NotNow
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge,
		http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity:
		return inbox.Refused
	case http.StatusGone:
		return inbox.Gone
	}
	switch status / 100 {
	case 2:
		return inbox.Done
	case 3, 4:
		return inbox.Misconfigured
	case 5:
		return inbox.Failed
	}
	return inbox.NoAnswer // 101, and numbers that HTTP does not have
}

// StatusOverrides replace rows of the answer table. The zero value replaces
// none.
type StatusOverrides struct {
	codes   map[int]inbox.Verdict
	classes [10]inbox.Verdict // by first digit; NotSent means none
}

var overrideWords = map[string]inbox.Verdict{
	"ack":   inbox.Done,          // processed
	"retry": inbox.Failed,        // again with backoff, counted
	"later": inbox.NotNow,        // again with backoff, not counted
	"park":  inbox.Refused,       // never
	"slow":  inbox.Misconfigured, // the set-up is wrong
	"pause": inbox.Gone,          // the consumer pauses until told to resume
}

// ParseStatusOverrides reads pairs such as 404: park and 5xx: retry. A code goes
// before its class. Every problem is reported, each under its key.
func ParseStatusOverrides(m map[string]string) (StatusOverrides, error) {
	var o StatusOverrides
	var errs []error
	seen := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(m)) {
		verdict, ok := overrideWords[m[key]]
		if !ok {
			errs = append(errs, fmt.Errorf("%s: must be ack, retry, later, park, slow or pause, got %q", key, m[key]))
			continue
		}
		norm := strings.ToLower(key)
		if first, twice := seen[norm]; twice {
			errs = append(errs, fmt.Errorf("%s: is the same as %s", key, first))
			continue
		}
		seen[norm] = key
		if !o.set(norm, verdict) {
			errs = append(errs, fmt.Errorf("%q: must be a status from 200 to 599, or 2xx, 3xx, 4xx or 5xx", key))
		}
	}
	return o, errors.Join(errs...)
}

func (o *StatusOverrides) set(key string, v inbox.Verdict) bool {
	if len(key) != 3 || key[0] < '2' || key[0] > '5' {
		return false
	}
	if key[1:] == "xx" {
		o.classes[key[0]-'0'] = v
		return true
	}
	code, err := strconv.ParseUint(key, 10, 16)
	if err != nil {
		return false
	}
	if o.codes == nil {
		o.codes = map[int]inbox.Verdict{}
	}
	o.codes[int(code)] = v
	return true
}

func (o *StatusOverrides) verdict(status int) inbox.Verdict {
	if status < 200 || status > 599 {
		return verdictOf(status)
	}
	if v, ok := o.codes[status]; ok {
		return v
	}
	if v := o.classes[status/100]; v != inbox.NotSent {
		return v
	}
	return verdictOf(status)
}

// actionVerdict reads Inbox-Action, the word of a handler that knows better than
// the table. Other words than these are no word.
func actionVerdict(action string) (inbox.Verdict, bool) {
	switch strings.ToLower(strings.TrimSpace(action)) {
	case "ack":
		return inbox.Done, true
	case "retry":
		return inbox.Failed, true
	case "park":
		return inbox.Refused, true
	}
	return inbox.NotSent, false
}

const maxRetryAfter = time.Hour

// parseRetryAfter reads the header of that name, seconds or a date, at most one
// hour. What is neither, and what has passed, is 0.
func parseRetryAfter(s string, now time.Time) time.Duration {
	s = strings.TrimSpace(s)
	if s == "" {
		return 0
	}
	if strings.Trim(s, "0123456789") == "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil || n > uint64(maxRetryAfter/time.Second) { // err: too large a number
			return maxRetryAfter
		}
		return time.Duration(n) * time.Second
	}
	t, err := http.ParseTime(s)
	if err != nil {
		return 0
	}
	// Compared first: the difference of far dates overflows a Duration.
	if t.After(now.Add(maxRetryAfter)) {
		return maxRetryAfter
	}
	return max(0, t.Sub(now))
}
