package postgres

import (
	"context"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/inboxd/inboxd/internal/testenv"
)

// largeTable is the number of rows that INBOXD_TEST_LARGE_TABLE asks for.
func largeTable() int {
	n, _ := strconv.Atoi(os.Getenv("INBOXD_TEST_LARGE_TABLE"))
	return n
}

// admin runs one statement on a connection of its own.
func admin(t testing.TB, url, sql string, args ...any) {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), url)
	must(t, err)
	defer conn.Close(context.Background())
	tag, err := conn.Exec(context.Background(), sql, append([]any{pgx.QueryExecModeExec}, args...)...)
	must(t, err)
	if tag.Update() && tag.RowsAffected() == 0 {
		t.Fatalf("nothing changed by %s %v", sql, args)
	}
}

// explain returns the plan as a look-up's connection makes it.
func explain(t testing.TB, s *Store, sql string, args ...any) string {
	t.Helper()
	var plan []string
	err := s.try(t.Context(), s.lookups, s.opts.CallTime, func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, "explain "+sql, args...)
		if err != nil {
			return err
		}
		plan, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	must(t, err)
	return strings.Join(plan, "\n")
}

func serverLog(t testing.TB, p *testenv.Postgres) string {
	t.Helper()
	b, err := os.ReadFile(p.Log)
	must(t, err)
	return string(b)
}
