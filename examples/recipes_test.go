// Package examples tests the recipes: each is started as a user would start it,
// and must be proven by `inboxd verify`, kills included.
package examples

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/inboxd/inboxd/internal/store/shared"
	"github.com/inboxd/inboxd/internal/testenv"
	"github.com/inboxd/inboxd/internal/verify"
)

func TestMain(m *testing.M) {
	if os.Getenv("CI") != "" {
		install := exec.Command("../scripts/install-recipe-deps")
		install.Stdout, install.Stderr = os.Stderr, os.Stderr
		if err := install.Run(); err != nil {
			fmt.Fprintln(os.Stderr, "installing what the recipes need:", err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// recipe is one service and how to start it. PORT, DATABASE_URL and DATA_DIR are
// in the environment.
type recipe struct {
	file    string
	needs   string // a command that succeeds where everything is installed
	command string
}

// Debian's own interpreters come first: Debian's packages belong to them.
const path = "PATH=/usr/bin:/bin:$PATH; "

var recipes = map[string]recipe{
	"python": {"python/app.py", "python3 -c 'import psycopg, psycopg_pool'", "exec python3 python/app.py"},
	"node":   {"node/app.js", "test -d node/node_modules/pg && node --version", "exec node node/app.js"},
	"php":    {"php/app.php", "php -m | grep -q pdo_pgsql", "PHP_CLI_SERVER_WORKERS=8 exec php -S 127.0.0.1:$PORT php/app.php"},
	"ruby":   {"ruby/app.rb", "ruby -e 'require \"pg\"; require \"webrick\"'", "exec ruby ruby/app.rb"},
	"java": {
		"java/App.java", "test -e /usr/share/java/postgresql.jar && java --list-modules | grep -q jdk.compiler",
		"exec java -cp /usr/share/java/postgresql.jar java/App.java",
	},
	"go":   {"go/main.go", "test -x $GO_RECIPE", "exec $GO_RECIPE"},
	"perl": {"perl/app.psgi", "perl -MDBD::Pg -MStarman -e 1", "exec starman --listen 127.0.0.1:$PORT --workers 8 perl/app.psgi"},
}

var noDatabase = recipe{"no-database/app.py", "python3 --version", "exec python3 no-database/app.py"}

// running is a recipe that was started in a process group of its own.
type running struct {
	url     string
	env     []string
	start   string // a shell command that starts it again
	pidFile string
	log     string
}

// run starts a recipe. Where something is missing the test is skipped, or fails
// when CI is set.
func run(t *testing.T, r recipe, env ...string) *running {
	t.Helper()
	dir := t.TempDir()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	l.Close()
	s := &running{
		url:     "http://127.0.0.1:" + port,
		env:     append(append(os.Environ(), "PORT="+port), env...),
		pidFile: filepath.Join(dir, "pid"),
		log:     filepath.Join(dir, "log"),
	}
	if out, err := s.shell(t.Context(), path+r.needs); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("%s: %v\n%s", r.needs, err, out)
		}
		t.Skipf("scripts/install-recipe-deps installs what is missing: %v %s", err, out)
	}
	// A session of its own, so that all its processes can be killed as one group.
	script := filepath.Join(dir, "start")
	// Again where it ends: what was killed may hold the port for a moment more.
	text := fmt.Sprintf("echo -$$ >%s\nexport PORT=%s '%s'\n%si=0\nuntil ( %s ) || [ $i -ge 100 ]; do i=$((i+1)); sleep 0.1; done\n",
		s.pidFile, port, strings.Join(env, "' '"), path, r.command)
	if err := os.WriteFile(script, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s.start = fmt.Sprintf("setsid sh %s </dev/null >>%s 2>&1 &", script, s.log)
	if out, err := s.shell(t.Context(), s.start); err != nil {
		t.Fatalf("starting: %v\n%s", err, out)
	}
	t.Cleanup(func() {
		s.kill(t)
		if log, _ := os.ReadFile(s.log); t.Failed() {
			t.Logf("log of %s:\n%s", r.file, log)
		}
	})
	s.awaitHealth(t)
	return s
}

func (s *running) shell(ctx context.Context, command string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "sh", "-c", command)
	cmd.Env = s.env
	return cmd.CombinedOutput()
}

func (s *running) kill(t *testing.T) {
	b, err := os.ReadFile(s.pidFile)
	if err != nil {
		t.Errorf("reading the PID: %v", err)
		return
	}
	group, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || group >= -1 {
		t.Errorf("PID file: got %q", b)
		return
	}
	_ = syscall.Kill(group, syscall.SIGKILL)
}

var client = &http.Client{Timeout: 30 * time.Second}

func (s *running) awaitHealth(t *testing.T) {
	t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for {
		resp, err := client.Get(s.url + "/healthz")
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return
			}
			err = fmt.Errorf("status %d", resp.StatusCode)
		}
		if time.Now().After(deadline) {
			t.Fatalf("the service did not come up: %v", err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

// setUp returns a database with the orders and the printed inbox.
func setUp(t *testing.T) (url string, conn *pgx.Conn) {
	t.Helper()
	url = testenv.DatabaseURL(t)
	conn = connect(t, url)
	inbox, err := shared.Schema(shared.SchemaOptions{})
	if err != nil {
		t.Fatal(err)
	}
	orders, err := os.ReadFile("orders.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{inbox, string(orders)} {
		if _, err := conn.PgConn().Exec(t.Context(), sql).ReadAll(); err != nil {
			t.Fatal(err)
		}
	}
	return url, conn
}

// build compiles a command and returns its path.
func build(t *testing.T, pkg string) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "bin")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", bin, pkg).CombinedOutput(); err != nil {
		t.Fatalf("go build %s: %v\n%s", pkg, err, out)
	}
	return bin
}

// post sends one message and returns status and outcome.
func (s *running) post(t *testing.T, header map[string]string, body string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+"/messages", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range header {
		req.Header.Set(name, value)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return strings.TrimSpace(strconv.Itoa(resp.StatusCode) + " " + resp.Header.Get("Inbox-Outcome"))
}

func (s *running) verify(t *testing.T, route string, view ...string) {
	t.Helper()
	args := append([]string{
		"--restart-cmd", s.start, "--pid-file", s.pidFile, "--quiet", "100ms",
		"--body", `{"order_id": "{{id}}", "customer": "Ada {{n}}", "amount_cents": 1999, "version": 1}`,
	}, view...)
	var out bytes.Buffer
	if code := verify.Main(t.Context(), append(args, s.url+route), &out, &out); code != 0 || strings.Contains(out.String(), "skip again") {
		t.Errorf("verify: got exit code %d, want 0 with every case run\n%s", code, out.String())
	}
}

func TestRecipesHaveOneEffectPerMessage(t *testing.T) {
	t.Parallel()
	amqpURL, inboxd := testenv.AMQPURL(t), build(t, "../cmd/inboxd")
	for name, r := range recipes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, conn := setUp(t)
			env := []string{"DATABASE_URL=" + url}
			if name == "go" {
				env = append(env, "GO_RECIPE="+build(t, "./go"))
			}
			s := run(t, r, env...)

			headers := map[string]string{"Idempotency-Key": "m-1", "Inbox-Consumer": "billing", "Inbox-Fingerprint": "00ff00ff00ff00ff"}
			other := map[string]string{"Idempotency-Key": "m-1", "Inbox-Consumer": "billing", "Inbox-Fingerprint": "11ff00ff00ff00ff"}
			const order = `{"order_id": "A-1", "customer": "Ada", "amount_cents": 1999}`
			for _, c := range []struct {
				header     map[string]string
				body, want string
			}{
				{headers, "no JSON", "400"},
				{headers, `{"order_id": "A-1", "customer": "Ada"}`, "400"},
				{headers, `{"order_id": "A-1", "customer": "Ada", "amount_cents": -1}`, "400"},
				{nil, order, "400"},
				{headers, order, "200 processed"},
				{headers, order, "200 duplicate"},
				{other, order, "422"},
			} {
				if got := s.post(t, c.header, c.body); got != c.want {
					t.Errorf("%s with %v: got %s, want %s", c.body, c.header, got, c.want)
				}
			}
			s.behindDaemon(t, inboxd, amqpURL, url, conn)
			s.verify(t, "/messages", "--sql", url, "--query", "select count(*) from orders where order_id = {{id}}")

			var orders, rows int
			if err := conn.QueryRow(t.Context(), `select (select count(*) from orders), (select count(*) from inbox)`).Scan(&orders, &rows); err != nil {
				t.Fatal(err)
			}
			if orders != rows || orders < 20 {
				t.Errorf("got %d orders and %d inbox rows, want as many of both", orders, rows)
			}
		})
	}
}

func TestRecipesWithoutADatabaseHaveOneEffectPerMessage(t *testing.T) {
	t.Parallel()
	for _, route := range []string{"/messages", "/states", "/versions"} {
		t.Run(route[1:], func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			s := run(t, noDatabase, "DATA_DIR="+dir)
			s.verify(t, route, "--command", "cat "+dir+route+"/{{id}} 2>/dev/null || true")
		})
	}
}

func TestRecipesAreShort(t *testing.T) {
	t.Parallel()
	files := []string{noDatabase.file}
	for _, r := range recipes {
		files = append(files, r.file)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(b, []byte("\n")); n >= 80 {
			t.Errorf("%s: got %d lines, want fewer than 80", file, n)
		}
	}
}

// What the page shows is what the tests have proven.
func TestPageOfRecipesShowsTheirCode(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/recipes.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?ms)^<!-- (\\S+) -->\n```\\w*\n(.*?)^```$").FindAllSubmatch(page, -1)
	shown := make(map[string]bool)
	for _, b := range blocks {
		file := string(b[1])
		code, err := os.ReadFile(file)
		if err != nil {
			t.Errorf("docs/recipes.md: %v", err)
			continue
		}
		if !bytes.Contains(code, b[2]) {
			t.Errorf("docs/recipes.md shows other code than %s:\n%s", file, b[2])
		}
		shown[file] = true
	}
	for name, r := range recipes {
		if !shown[r.file] {
			t.Errorf("docs/recipes.md does not show the recipe for %s", name)
		}
	}
	if !shown[noDatabase.file] {
		t.Error("docs/recipes.md does not show the recipe without a database")
	}
}
