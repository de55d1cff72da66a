package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

const (
	// consumerName is half of the inbox key.
	consumerName = "demo"
	concurrency  = 8
	prefetch     = 32
)

// daemon is inboxd with its configuration; it can live several times.
type daemon struct {
	program, config, dir string
	metrics, admin       string // addresses
	process              *process
}

func newDaemon(dir, program, brokerURL, queue, handlerURL string) (*daemon, error) {
	d := &daemon{program: program, dir: dir, config: filepath.Join(dir, "inboxd.yaml")}
	var err error
	if d.metrics, err = freeAddr(); err != nil {
		return nil, err
	}
	if d.admin, err = freeAddr(); err != nil {
		return nil, err
	}
	text := configuration(brokerURL, queue, handlerURL, filepath.Join(dir, "inboxd.db"), d.metrics, d.admin)
	if err := os.WriteFile(d.config, []byte(text), 0o600); err != nil {
		return nil, fmt.Errorf("writing the configuration: %w", err)
	}
	return d, nil
}

// configuration is what a user would write; the rest keeps its defaults.
func configuration(brokerURL, queue, handlerURL, database, metrics, admin string) string {
	return fmt.Sprintf(`broker:
  url: %q
store:
  url: %q
consumers:
  - name: %s
    queue: %s
    concurrency: %d
    prefetch: %d
    forward:
      url: %s
metrics: {listen: %q}
admin: {listen: %q}
`, brokerURL, "sqlite:"+database, consumerName, queue, concurrency, prefetch, handlerURL, metrics, admin)
}

func (d *daemon) start() (err error) {
	d.process, err = startProcess(d.dir, "inboxd", d.program, "run", "-c", d.config)
	return err
}

func (d *daemon) kill() {
	if d.process != nil {
		d.process.kill()
	}
}

// stop ends the daemon as a deployment does.
func (d *daemon) stop() error {
	if err := d.process.stop(); err != nil {
		return fmt.Errorf("stopping inboxd: %w\n%s", err, lastWords(d.process.log))
	}
	return nil
}

// died reports a daemon that ended by itself.
func (d *daemon) died() error {
	if d.process.running() {
		return nil
	}
	err := d.process.err
	if err == nil {
		err = errors.New("exit code 0")
	}
	return fmt.Errorf("inboxd ended by itself: %w\n%s", err, lastWords(d.process.log))
}

// counters are what one life of the daemon says of itself.
type counters struct {
	processed, duplicate, parked, deferred int
}

// settled is the number of deliveries that are acknowledged.
func (c counters) settled() int { return c.processed + c.duplicate + c.parked + c.deferred }

// scrape reads the daemon's metrics.
func (d *daemon) scrape(ctx context.Context) (counters, error) {
	body, err := get(ctx, "http://"+d.metrics+"/metrics")
	if err != nil {
		return counters{}, err
	}
	defer body.Close()
	return readCounters(body)
}

// readCounters finds inboxd_deliveries_total in the text format of Prometheus.
func readCounters(r io.Reader) (c counters, err error) {
	found := false
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		labels, ok := strings.CutPrefix(lines.Text(), "inboxd_deliveries_total{")
		if !ok {
			continue
		}
		labels, value, ok := strings.Cut(labels, "} ")
		if !ok {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return c, fmt.Errorf("reading the metrics: %w", err)
		}
		found = true
		for outcome, count := range map[string]*int{
			"processed": &c.processed, "duplicate": &c.duplicate, "parked": &c.parked, "deferred": &c.deferred,
		} {
			if strings.Contains(labels, `outcome="`+outcome+`"`) {
				*count += int(v)
			}
		}
	}
	if err := lines.Err(); err != nil {
		return c, fmt.Errorf("reading the metrics: %w", err)
	}
	if !found {
		return c, errors.New("the metrics hold no inboxd_deliveries_total")
	}
	return c, nil
}

var client = &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{Proxy: nil}}

func get(ctx context.Context, url string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, errors.Join(fmt.Errorf("%s answers %s", url, resp.Status), resp.Body.Close())
	}
	return resp.Body, nil
}
