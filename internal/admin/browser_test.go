package admin

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/inboxd/inboxd/internal/inbox"
	"github.com/inboxd/inboxd/internal/testenv"
)

// browser is a headless Chromium, spoken to over its debugging pipe.
type browser struct {
	t       *testing.T
	out     *os.File
	in      *bufio.Reader
	id      int
	session string
	// complaints are console errors, refused loads and dialogs.
	complaints []string
}

// startBrowser skips the test where there is no Chromium and CI is not set.
func startBrowser(t *testing.T) *browser {
	t.Helper()
	if testing.Short() {
		t.Skip("a browser takes a while")
	}
	program := testenv.Program(t, "chromium", "google-chrome")
	toBrowser, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	in, fromBrowser, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	// Not t.TempDir: Chromium's helpers may write a moment longer than it lives.
	profile, err := os.MkdirTemp("", "inboxd-browser") //nolint:usetesting // see above
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
		"--user-data-dir="+profile, "--remote-debugging-pipe", "about:blank")
	cmd.ExtraFiles = []*os.File{toBrowser, fromBrowser} // 3 and 4
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	toBrowser.Close()
	fromBrowser.Close()
	b := &browser{t: t, out: out, in: bufio.NewReaderSize(in, 1<<20)}
	t.Cleanup(func() {
		out.Close() // the end of its debugging pipe ends the browser
		killer := time.AfterFunc(5*time.Second, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		killer.Stop()
		in.Close()
		for range 50 {
			if os.RemoveAll(profile) == nil {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
	target := b.call("Target.createTarget", map[string]any{"url": "about:blank"})["targetId"]
	b.session = b.call("Target.attachToTarget", map[string]any{"targetId": target, "flatten": true})["sessionId"].(string)
	for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
		b.call(domain+".enable", nil)
	}
	return b
}

func (b *browser) call(method string, params map[string]any) map[string]any {
	b.t.Helper()
	b.id++
	msg := map[string]any{"id": b.id, "method": method}
	if params != nil {
		msg["params"] = params
	}
	if b.session != "" {
		msg["sessionId"] = b.session
	}
	line, err := json.Marshal(msg)
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.out.Write(append(line, 0)); err != nil {
		b.t.Fatal(err)
	}
	for {
		m := b.read()
		if m["id"] == float64(b.id) {
			if e, ok := m["error"]; ok {
				b.t.Fatalf("%s: %v", method, e)
			}
			res, _ := m["result"].(map[string]any)
			return res
		}
	}
}

func (b *browser) read() map[string]any {
	b.t.Helper()
	line, err := b.in.ReadBytes(0)
	if err != nil {
		b.t.Fatalf("the browser is gone: %v", err)
	}
	var m map[string]any
	if err := json.Unmarshal(line[:len(line)-1], &m); err != nil {
		b.t.Fatal(err)
	}
	switch m["method"] {
	case "Log.entryAdded", "Runtime.exceptionThrown", "Page.javascriptDialogOpening", "Network.loadingFailed":
		b.complaints = append(b.complaints, strings.TrimSuffix(string(line), "\x00"))
	}
	return m
}

func (b *browser) untilLoaded() {
	b.t.Helper()
	for b.read()["method"] != "Page.loadEventFired" {
	}
}

func (b *browser) open(url string) {
	b.t.Helper()
	b.call("Page.navigate", map[string]any{"url": url})
	b.untilLoaded()
}

// eval runs JavaScript and returns its value.
func (b *browser) eval(js string) any {
	b.t.Helper()
	res := b.call("Runtime.evaluate", map[string]any{"expression": js, "returnByValue": true, "awaitPromise": true})
	if e, ok := res["exceptionDetails"]; ok {
		b.t.Fatalf("%s: %v", js, e)
	}
	r, _ := res["result"].(map[string]any)
	return r["value"]
}

// press clicks what a selector finds, and waits for the next page.
func (b *browser) press(selector string) {
	b.t.Helper()
	if b.eval(fmt.Sprintf("!document.querySelector(%q)", selector)) == true {
		b.t.Fatalf("there is no %s on %v:\n%v", selector, b.eval("location.href"), b.text())
	}
	b.eval(fmt.Sprintf("setTimeout(() => document.querySelector(%q).click(), 0)", selector))
	b.untilLoaded()
}

func (b *browser) fill(selector, text string) {
	b.t.Helper()
	b.eval(fmt.Sprintf("document.querySelector(%q).value = %q", selector, text))
}

func (b *browser) text() string { s, _ := b.eval("document.body.innerText").(string); return s }

func (b *browser) wantText(want string) {
	b.t.Helper()
	if got := b.text(); !strings.Contains(got, want) {
		b.t.Errorf("got %v:\n%s\nwant %q in it", b.eval("location.href"), got, want)
	}
}

// look checks that nothing is wider than the screen, and takes a picture where
// INBOXD_TEST_SCREENSHOTS names a directory.
func (b *browser) look(name string) {
	b.t.Helper()
	for _, s := range []struct {
		name   string
		width  int
		scheme string
	}{{"desktop-light", 1280, "light"}, {"desktop-dark", 1280, "dark"}, {"phone-light", 390, "light"}, {"phone-dark", 390, "dark"}} {
		b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": s.width, "height": 800, "deviceScaleFactor": 1, "mobile": s.width < 500})
		b.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]any{{"name": "prefers-color-scheme", "value": s.scheme}}})
		if w := b.eval("document.documentElement.scrollWidth").(float64); w > float64(s.width) {
			b.t.Errorf("%s on %s: got %v pixels wide, want at most %d", name, s.name, w, s.width)
		}
		dir := os.Getenv("INBOXD_TEST_SCREENSHOTS")
		if dir == "" {
			continue
		}
		height := b.eval("document.documentElement.scrollHeight")
		shot := b.call("Page.captureScreenshot", map[string]any{
			"captureBeyondViewport": true,
			"clip":                  map[string]any{"x": 0, "y": 0, "width": s.width, "height": height, "scale": 1},
		})
		png, err := base64.StdEncoding.DecodeString(shot["data"].(string))
		if err != nil {
			b.t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name+"-"+s.name+".png"), png, 0o600); err != nil {
			b.t.Fatal(err)
		}
	}
	b.call("Emulation.clearDeviceMetricsOverride", nil)
}

// evilHTML is what must never be obeyed. It is visible ASCII, so that it is its
// own canonical ID.
const evilHTML = `"><img/src=x/onerror=hit()><script>hit()</script>'{{7*7}}</textarea></pre>`

// busyDay fills the samples with ten minutes of work.
func busyDay(d *desk) (end Counters) {
	now := time.Now()
	c := Counters{Processed: 1080331, Duplicate: 2127, Parked: 38}
	for i := range sampleCount {
		f := float64(i)
		cs := someConsumers()
		c.Processed += uint64(5 * (180 + 60*math.Sin(f/9) + 25*math.Sin(f/2.3)))
		c.Duplicate += uint64(5 * max(0, 14+9*math.Sin(f/5)))
		cs[0].Counters, cs[0].InFlight = c, int(9+5*math.Sin(f/7)+2*math.Sin(f))
		d.samples.add(now.Add(time.Duration(i-sampleCount)*sampleEvery), cs)
	}
	return c
}

func TestThePageInABrowser(t *testing.T) {
	t.Parallel()
	b := startBrowser(t)
	counters := busyDay(&desk{Admin: &Admin{samples: newSamples()}})
	d := open(t, withToken(t, "ops secret\n"), func(o *Options) {
		o.Consumers = func() []ConsumerStatus {
			cs := someConsumers()
			cs[0].Concurrency, cs[0].InFlight = 16, 11
			cs[0].Counters = counters
			cs[1].Breaker.Why = "dial tcp 127.0.0.1:8080: connect: connection refused"
			return cs
		}
	})
	busyDay(d)
	d.park(t, 6)
	evil := parkedMessage(evilHTML, `{"html":"`+strings.ReplaceAll(evilHTML, `"`, `\"`)+`"}`)
	evil.Error, evil.Answer, evil.RoutingKey, evil.Reason = evilHTML, []byte(evilHTML), evilHTML, inbox.AttemptsUsed
	evil.Properties.Type, evil.Headers = evilHTML, inbox.Table{evilHTML: evilHTML, "rtl": "\u202egnp.exe"}
	evil.LastStatus, evil.Attempts, evil.Requests = 500, 10, 12
	later := parkedMessage("order-later", "<later/>")
	later.State, later.Reason, later.Due = inbox.StateDeferred, inbox.NoReason, time.Now().Add(7*time.Minute)
	for _, m := range []*inbox.ParkedMessage{evil, later} {
		m.ParkedAt = time.Now().Add(-3 * time.Minute)
		if err := d.store.Park(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}

	b.open(d.url + "/parked?consumer=billing")
	b.look("login")
	b.fill("input[name=name]", "ann")
	b.fill("input[name=token]", "secret")
	b.press("form.stack button")
	if got := b.eval("location.pathname"); got != "/parked" {
		t.Errorf("after the login: got %v, want the page that was asked for", got)
	}
	b.open(d.url + "/")
	b.wantText("the health URL answers 503")
	b.wantText("Duplicates are suppressed ones")
	b.look("overview")

	b.press("nav a[href='/parked']")
	b.wantText(evilHTML)
	b.look("parked")
	b.press("a[href='/parked/" + evil.ID + "']")
	b.wantText(`hit()`)
	b.wantText("⟨U+202E⟩")
	b.look("message")
	b.open(d.url + "/parked/" + evil.ID + "?view=hex")
	b.wantText("00000000  7b 22")
	b.open(d.url + "/parked/" + evil.ID)
	b.press("a.danger")
	b.look("discard")
	b.fill("input[name=why]", evilHTML)
	b.press("button.danger")
	b.wantText("The message is discarded.")

	first := d.firstParked(t)
	b.press("form[action='/parked/" + first + "/replay'] button")
	b.wantText("The message is due now.")
	if m, err := d.store.GetParked(t.Context(), first); err != nil || m.Replays != 1 {
		t.Errorf("got %+v, %v, want the message replayed", m, err)
	}

	d.store.Handler = func(*inbox.ParkedMessage) inbox.ParkedState { return "" }
	b.fill("select[name=reason]", "rejected")
	b.press("form.filter button")
	b.press("a[href*='action=replay']")
	b.wantText("Replay 5 messages?")
	b.look("replay-filter")
	b.press("form.stack button")
	id := d.jobs.list()[0].ID
	waitFor(t, "the run to end", func() bool { return d.jobs.list()[0].State == JobDone })
	b.open(d.url + "/runs/" + id)
	b.wantText("5 of 5 made due")
	b.look("run")
	b.press("nav a[href='/runs']")
	b.look("runs")

	b.press("nav a[href='/lookup']")
	b.fill("input[name=raw]", "a/b é")
	b.press("form.filter button")
	b.wantText("a/b%20%C3%A9")
	b.press(".verbs a")
	b.press("form.stack button")
	b.wantText("The message is recorded as processed.")
	b.wantText("What is not kept")
	b.look("lookup")
	b.press(".verbs a.danger")
	b.press("form.stack button")
	b.wantText("The record is gone")

	b.press("nav a[href='/']")
	b.eval("document.querySelector('details').open = true")
	b.fill("details input[name=why]", "migration")
	b.press("details button")
	b.wantText("The consumer is paused.")
	if got, want := d.paused["billing"], "paused by ann (page, ops, 127.0.0.1): migration"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	b.press("nav a[href='/audit']")
	b.wantText("migration")
	b.look("audit")
	b.press("form.who button")
	b.open(d.url + "/audit")
	b.wantText("The token is in the file")

	for _, c := range b.complaints {
		if !strings.Contains(c, "net::ERR_ABORTED") { // a page that was left
			t.Errorf("the browser complains: %s", c)
		}
	}
}

func (d *desk) firstParked(t *testing.T) string {
	t.Helper()
	ms, err := d.store.ListParked(t.Context(), inbox.ParkedFilter{State: inbox.StateParked}, "", 1)
	if err != nil || len(ms) == 0 {
		t.Fatalf("got %v, %v, want a parked message", ms, err)
	}
	return ms[0].ID
}
