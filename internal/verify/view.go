package verify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// view shows the state that the handler changes. Where its template names the
// message, it is read once for each message.
type view interface {
	read(ctx context.Context, m message) (reading, error)
	template() string
	close()
}

// reading is what a view showed: a number, or a text that is only compared.
type reading struct {
	number float64
	text   string
	isText bool
}

func parseReading(s string) reading {
	s = strings.TrimSpace(s)
	if s == "" {
		return reading{} // nothing there
	}
	if f, err := strconv.ParseFloat(s, 64); err == nil {
		return reading{number: f}
	}
	var list []json.RawMessage
	if json.Unmarshal([]byte(s), &list) == nil {
		return reading{number: float64(len(list))}
	}
	return reading{text: s, isText: true}
}

// sqlView runs a query; {{id}} and {{n}} are parameters.
type sqlView struct {
	conn  *pgx.Conn
	raw   string
	query string
	args  []func(message) string
}

func newSQLView(ctx context.Context, dsn, query string) (*sqlView, error) {
	c, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, errors.New("--sql: no PostgreSQL URL") // err may show the password
	}
	c.DefaultQueryExecMode = pgx.QueryExecModeExec
	v := &sqlView{raw: query, query: query}
	for mark, value := range map[string]func(message) string{
		"{{id}}": func(m message) string { return m.id },
		"{{n}}":  func(m message) string { return m.n },
	} {
		if strings.Contains(query, mark) {
			v.args = append(v.args, value)
			v.query = strings.ReplaceAll(v.query, "'"+mark+"'", mark) // quoted out of habit
			v.query = strings.ReplaceAll(v.query, mark, "$"+strconv.Itoa(len(v.args)))
		}
	}
	if v.conn, err = pgx.ConnectConfig(ctx, c); err != nil {
		return nil, fmt.Errorf("--sql: %w", err)
	}
	return v, nil
}

func (v *sqlView) read(ctx context.Context, m message) (reading, error) {
	args := make([]any, len(v.args))
	for i, a := range v.args {
		args[i] = a(m)
	}
	rows, err := v.conn.Query(ctx, v.query, args...)
	if err != nil {
		return reading{}, fmt.Errorf("--query: %w", err)
	}
	defer rows.Close()
	var lines []string
	for rows.Next() {
		var fields []string
		for _, raw := range rows.RawValues() {
			fields = append(fields, string(raw))
		}
		lines = append(lines, strings.Join(fields, "\t"))
	}
	if err := rows.Err(); err != nil {
		return reading{}, fmt.Errorf("--query: %w", err)
	}
	return parseReading(strings.Join(lines, "\n")), nil
}

func (v *sqlView) template() string { return v.raw }
func (v *sqlView) close()           { _ = v.conn.Close(context.Background()) }

// httpView reads a URL: a number, a JSON array (its length counts), or a text.
type httpView struct {
	raw     string
	pointer string
}

// viewClient follows redirects and proxies as a browser does: a view is the
// user's own.
var viewClient = &http.Client{Timeout: 30 * time.Second}

func (v *httpView) read(ctx context.Context, m message) (reading, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, m.fill(v.raw), nil)
	if err != nil {
		return reading{}, fmt.Errorf("--http: %w", err)
	}
	resp, err := viewClient.Do(req)
	if err != nil {
		return reading{}, fmt.Errorf("--http: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	switch {
	case err != nil:
		return reading{}, fmt.Errorf("--http: %w", err)
	case resp.StatusCode == http.StatusNotFound || resp.StatusCode == http.StatusNoContent:
		return reading{}, nil
	case resp.StatusCode/100 != 2:
		return reading{}, fmt.Errorf("--http: the view answered %s", resp.Status)
	case v.pointer == "":
		return parseReading(string(body)), nil
	}
	s, err := pick(body, v.pointer)
	if err != nil {
		return reading{}, fmt.Errorf("--json-pointer: %w", err)
	}
	return parseReading(s), nil
}

// pick follows a JSON pointer (RFC 6901).
func pick(body []byte, pointer string) (string, error) {
	var at any
	if err := json.Unmarshal(body, &at); err != nil {
		return "", err
	}
	for _, part := range strings.Split(pointer, "/")[1:] {
		part = strings.NewReplacer("~1", "/", "~0", "~").Replace(part)
		switch v := at.(type) {
		case map[string]any:
			at = v[part]
		case []any:
			at = element(v, part)
		default:
			return "", nil
		}
	}
	switch v := at.(type) {
	case nil:
		return "", nil
	case string:
		return v, nil
	default:
		b, err := json.Marshal(v)
		return string(b), err
	}
}

// element returns nil where there is none.
func element(list []any, index string) any {
	i, err := strconv.Atoi(index)
	if err != nil || i < 0 || i >= len(list) {
		return nil
	}
	return list[i]
}

func (v *httpView) template() string { return v.raw }
func (v *httpView) close()           {}

// commandView runs a shell command and reads what it prints.
type commandView struct{ raw string }

func (v *commandView) read(ctx context.Context, m message) (reading, error) {
	cmd := exec.CommandContext(ctx, "sh", "-c", m.fill(v.raw)) //nolint:gosec // the user's own command line
	cmd.WaitDelay = time.Second
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return reading{}, fmt.Errorf("--command: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return parseReading(string(out)), nil
}

func (v *commandView) template() string { return v.raw }
func (v *commandView) close()           {}

// keyed reports whether a view is about one message.
func keyed(v view) bool {
	return strings.Contains(v.template(), "{{id}}") || strings.Contains(v.template(), "{{n}}")
}
