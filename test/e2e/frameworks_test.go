package e2e

import (
	"bytes"
	"net"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/inboxd/inboxd/internal/testenv"
)

const frameworks = "testdata/frameworks/"

// framework runs an application on port until stop is called or the test ends.
func framework(t *testing.T, port, script string, args ...string) (stop func()) {
	t.Helper()
	cmd := exec.Command(python, append([]string{frameworks + script, port}, args...)...)
	var errs bytes.Buffer // read after Wait only
	cmd.Stderr = &errs
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
		if out := errs.String(); t.Failed() {
			t.Logf("the end of what %s said:\n%s", script, out[max(0, len(out)-2000):])
		}
	}
	t.Cleanup(stop)
	eventually(t, 60*time.Second, script+" listens", func() bool {
		c, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	return stop
}

// TestFrameworksThatRefuseEverythingParkTenMessagesAtMost: the refusals of real
// frameworks that are set up wrongly stop the consumer, the log says what to do,
// and after doing it every message is processed, the parked ones by a replay.
func TestFrameworksThatRefuseEverythingParkTenMessagesAtMost(t *testing.T) {
	t.Parallel()
	amqpURL := testenv.AMQPURL(t)
	const n = 60
	for _, c := range []struct {
		name, script string
		needs        string
		wrong, right []string // arguments of the script
		forward      string   // more keys that mend the daemon, where it is not the script
		cause        []string // texts in the log
		parked       int      // the tenth refusal is the first that is not
	}{
		{
			name: "Django's host check", script: "django_app.py", needs: "import django",
			wrong: []string{"shop.example", "", ""}, right: []string{"127.0.0.1", "", ""},
			cause: []string{"answered 400", "host check", "ALLOWED_HOSTS"}, parked: 9,
		},
		{
			name: "Django's host check in debug mode", script: "django_app.py", needs: "import django",
			wrong: []string{"shop.example", "debug", ""}, right: []string{"127.0.0.1", "debug", ""},
			cause: []string{"answered 400", "host check", "ALLOWED_HOSTS"}, parked: 9,
		},
		{
			name: "Django's CSRF check", script: "django_app.py", needs: "import django",
			wrong: []string{"127.0.0.1", "", "csrf"}, right: []string{"127.0.0.1", "", ""},
			cause: []string{"answered 403", "CSRF check", "exempt the route"}, parked: 0,
		},
		{
			name: "FastAPI without a content type", script: "fastapi_app.py", needs: "import fastapi, uvicorn",
			forward: "      content_type: application/json\n",
			cause:   []string{"answered 422", "application/octet-stream", "forward.content_type"}, parked: 9,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			requireCommand(t, python, "-c", c.needs)
			_, port, _ := net.SplitHostPort(testenv.FreeAddr(t))
			stop := framework(t, port, c.script, c.wrong...)
			q := queue(t, amqpURL, "quorum")
			messages, _ := orders("order", n, 0)
			for i := range messages {
				messages[i].ContentType = "" // as plain clients send them
			}
			publish(t, amqpURL, q, messages...)
			s := settings{
				amqp: amqpURL, queue: q, handler: "http://127.0.0.1:" + port + "/messages",
				consumer: "    retry: {initial: 10ms, max: 100ms}\n",
			}
			d := newDaemon(t, s)
			s.store = "sqlite:" + d.dir + "/inbox.db"
			d.start()
			eventually(t, 60*time.Second, "the breaker opens", func() bool { return d.metric("inboxd_breaker_open") == 1 })
			// Each probe is one message more that is refused.
			eventually(t, 60*time.Second, "it stays open after a probe", func() bool {
				return strings.Contains(d.readLog(), "breaker stays open")
			})
			eventually(t, 60*time.Second, "what was refused first is parked", func() bool { return d.outcome("parked") >= c.parked })
			if parked, done := d.outcome("parked"), d.outcome("processed"); parked != c.parked || done != 0 {
				t.Errorf("got %d parked and %d processed, want %d and 0", parked, done, c.parked)
			}
			opened := lineWith(d.readLog(), "breaker opened: the set-up looks wrong")
			for _, text := range c.cause {
				if !strings.Contains(opened, text) {
					t.Errorf("got the line %q, want it to name the cause: %s", opened, text)
				}
			}

			if c.forward != "" {
				d.stop()
				s.forward = c.forward
				d.write(s)
				d.start()
			} else {
				stop()
				framework(t, port, c.script, c.right...)
			}
			eventually(t, 120*time.Second, "what was not parked is processed", func() bool {
				return d.outcome("processed") == n-c.parked
			})
			if c.parked > 0 {
				code, out, errs := d.cli("parked", "replay", "-c", d.config, "--consumer", "billing", "--cause", "rejected", "--reason", "mended")
				if code != 0 {
					t.Fatalf("parked replay: exit %d\n%s%s", code, out, errs)
				}
			}
			eventually(t, 60*time.Second, "the parked ones too", func() bool { return d.outcome("processed") == n })
			d.awaitSettled(amqpURL, q, 60*time.Second)
			if got := d.outcome("parked"); got > c.parked {
				t.Errorf("got %d parked in the end, want no more than before: %d", got, c.parked)
			}
			d.stop()
		})
	}
}

func lineWith(log, text string) string {
	for line := range strings.Lines(log) {
		if strings.Contains(line, text) {
			return line
		}
	}
	return ""
}
