package forward

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
)

// refVerdict is the plain reading of overrides that are valid.
func refVerdict(rules map[string]string, status int, otherwise inbox.Verdict) inbox.Verdict {
	code := strconv.Itoa(status)
	for k, v := range rules {
		if k == code {
			return overrideWords[v]
		}
	}
	for k, v := range rules {
		if strings.ToLower(k) == code[:1]+"xx" {
			return overrideWords[v]
		}
	}
	return otherwise
}

func TestStatusOverrides(t *testing.T) {
	t.Parallel()
	o, err := ParseStatusOverrides(map[string]string{
		"404": "park", "409": "ack", "5xx": "later", "500": "retry", "202": "later", "418": "slow", "503": "pause",
	})
	if err != nil {
		t.Fatal(err)
	}
	for status, want := range map[int]inbox.Verdict{
		404: inbox.Refused, 409: inbox.Done, 500: inbox.Failed, 501: inbox.NotNow, 503: inbox.Gone, 202: inbox.NotNow,
		418: inbox.Misconfigured, 200: inbox.Done, 410: inbox.Gone, 101: inbox.NoAnswer,
	} {
		if got := o.verdict(status); got != want {
			t.Errorf("status %d: got %s, want %s", status, got, want)
		}
	}
}

func TestStatusOverridesReportEveryMistake(t *testing.T) {
	t.Parallel()
	_, err := ParseStatusOverrides(map[string]string{
		"99": "ack", "600": "ack", "101": "ack", "1xx": "ack", "abc": "ack", "404": "drop", "5xx": "retry", "5XX": "retry", "": "ack", "+20": "ack",
	})
	if err == nil {
		t.Fatal("got no error")
	}
	if got := strings.Split(err.Error(), "\n"); len(got) != 9 {
		t.Errorf("got %d mistakes, want 9:\n%v", len(got), err)
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 10, 21, 7, 0, 0, 0, time.UTC)
	for in, want := range map[string]time.Duration{
		"": 0, "0": 0, "120": 2 * time.Minute, " 7 ": 7 * time.Second, "3600": time.Hour, "3601": time.Hour,
		"99999999999999999999999": time.Hour, "-1": 0, "1.5": 0, "soon": 0, "1e3": 0,
		"Wed, 21 Oct 2026 07:28:00 GMT": 28 * time.Minute, "Wed, 21 Oct 2026 06:28:00 GMT": 0,
		"Wed, 21 Oct 2026 09:28:00 GMT": time.Hour, "Tue, 21 Oct 9998 09:28:00 GMT": time.Hour,
		"Wednesday, 21-Oct-26 07:01:00 GMT": time.Minute, "Wed Oct 21 07:02:00 2026": 2 * time.Minute,
	} {
		if got := parseRetryAfter(in, now); got != want {
			t.Errorf("Retry-After %q: got %v, want %v", in, got, want)
		}
	}
}
