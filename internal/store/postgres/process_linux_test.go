package postgres

import (
	"os/exec"
	"testing"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
	"github.com/inboxd/inboxd/internal/testenv"
)

// A daemon that was killed and is started again on the same machine need not wait
// for its own leases.
func TestSuccessorOfADeadProcessGoesOnAtOnce(t *testing.T) {
	t.Parallel()
	url := testenv.DatabaseURL(t)
	dead := open(t, Options{URL: url, LeaseTime: time.Hour})
	if dead.self.home == "" {
		t.Skip("this system does not tell which processes live")
	}
	child := exec.Command("sleep", "60")
	must(t, child.Start())
	dead.self.pid = child.Process.Pid
	started, err := startOf(dead.self.pid)
	must(t, err)
	admin(t, url, "update inboxd.owner set pid = $2, started = $3 where id = $1::text::uuid", dead.owner, dead.self.pid, started)
	wantStatus(t, dead, key("k"), inbox.ClaimNew)
	wantStatus(t, open(t, Options{URL: url}), key("k"), inbox.ClaimHeld) // it lives
	must(t, child.Process.Kill())
	_ = child.Wait()
	wantStatus(t, open(t, Options{URL: url}), key("k"), inbox.ClaimNew)
}
