package shared

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/inboxd/inboxd/internal/inbox"
)

// Examine looks at the table as Open does and tells everything it sees, for
// `inboxd check`. An unreachable database is a finding too.
func Examine(ctx context.Context, o Options) []inbox.Finding {
	if err := o.Validate(); err != nil {
		return []inbox.Finding{{
			Level: inbox.LevelFail, Subject: "shared inbox", Detail: err.Error(),
			Remedy: "mend the keys under inbox: of the consumer",
		}}
	}
	o = o.withDefaults()
	_, findings, err := examine(ctx, o)
	if err != nil {
		findings = append(findings, inbox.Finding{
			Level: inbox.LevelFail, Subject: "shared inbox", Detail: err.Error(),
			Remedy: "check inbox.url, the password and that the service's PostgreSQL is up and lets inboxd in",
		})
	}
	return findings
}

// The columns that a shared table must have, and those it may have.
const (
	colConsumer    = "consumer"
	colMessageID   = "message_id"
	colFingerprint = "fingerprint"
	colCreatedAt   = "created_at"
)

var keyColumns = []string{colConsumer, colMessageID}

// report collects findings about one table.
type report struct {
	subject  string
	findings []inbox.Finding
}

func (r *report) fail(remedy, detail string, args ...any) {
	r.add(inbox.LevelFail, remedy, detail, args)
}

func (r *report) warn(remedy, detail string, args ...any) {
	r.add(inbox.LevelWarn, remedy, detail, args)
}
func (r *report) ok(detail string, args ...any) { r.add(inbox.LevelOK, "", detail, args) }

func (r *report) add(level, remedy, detail string, args []any) {
	if len(args) > 0 {
		detail = fmt.Sprintf(detail, args...)
	}
	r.findings = append(r.findings, inbox.Finding{
		Level: level, Subject: r.subject, Detail: detail, Remedy: remedy,
	})
}

func (r *report) failed() bool {
	return slices.ContainsFunc(r.findings, func(f inbox.Finding) bool { return f.Level == inbox.LevelFail })
}

// examine reads the catalogue. The table is valid only where no finding fails;
// err is only about reaching the database.
func examine(ctx context.Context, o Options) (table, []inbox.Finding, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*o.Timeout)
	defer cancel()
	name, err := parseTable(o.Table)
	if err != nil {
		return table{}, nil, err
	}
	conn, err := o.connect(ctx)
	if err != nil {
		return table{}, nil, fmt.Errorf("connecting to the database of the shared inbox: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))

	r := &report{subject: "shared inbox " + name.Sanitize()}
	t := table{name: name}
	err = examineWith(ctx, conn, &t, o, r)
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "42501" {
		r.fail(grantRemedy(name), "permission denied: %s", pg.Message)
		err = nil
	}
	if err != nil {
		return table{}, r.findings, fmt.Errorf("examining the shared inbox: %w", err)
	}
	return t, r.findings, nil
}

func examineWith(ctx context.Context, conn *pgx.Conn, t *table, o Options, r *report) error {
	if err := examineServer(ctx, conn, r); err != nil || r.failed() {
		return err
	}
	rel, err := readRelation(ctx, conn, t.name)
	if err != nil {
		return err
	}
	base := rel.judge(t.name, r)
	if r.failed() {
		return nil
	}
	if rel.kind == kindView {
		if base, err = examineView(ctx, conn, rel, r); err != nil || r.failed() {
			return err
		}
	}
	t.plain = rel.kind == kindTable

	cols, err := readColumns(ctx, conn, rel.oid)
	if err != nil {
		return err
	}
	judgeColumns(cols, t, r)
	if r.failed() {
		return nil
	}
	keys, err := readKeys(ctx, conn, base)
	if err != nil {
		return err
	}
	judgeKeys(keys, t.name, r)
	if o.Retention > 0 && !r.failed() {
		err = examineRetention(ctx, conn, t, rel, r)
	}
	return err
}

func examineServer(ctx context.Context, conn *pgx.Conn, r *report) error {
	var standby bool
	var isolation string
	err := conn.QueryRow(ctx, `select pg_is_in_recovery(), current_setting('default_transaction_isolation')`).
		Scan(&standby, &isolation)
	if err != nil {
		return err
	}
	if standby {
		r.fail("name the primary in inbox.url, or all hosts with target_session_attrs=primary",
			"the server is a standby: it may lack rows that are committed already")
		return nil
	}
	if isolation != "read committed" {
		r.warn("let handlers begin their transactions at READ COMMITTED, or answer 5xx to SQLSTATE 40001: the message is then sent again and its row is found",
			"default_transaction_isolation is %s: of two transactions with one key the later may fail instead of being told that it is a duplicate", isolation)
	}
	return nil
}

// judgeColumns looks at the types and rights of the columns.
func judgeColumns(cols map[string]column, t *table, r *report) {
	for _, name := range keyColumns {
		c, there := cols[name]
		switch {
		case !there:
			r.fail(schemaRemedy(t.name), "it has no column %s", name)
		case c.base == "uuid" && name == colMessageID:
			t.uuid = true
			r.ok("message_id is a uuid: only messages whose ID is a UUID can be processed")
		case c.base == "varchar" && c.length > 0 && c.length < 255:
			r.warn(fmt.Sprintf("alter table … alter column %s type text", name),
				"%s is %s, but message IDs may have 255 bytes: longer ones will fail in the handler", name, c.full)
		case c.base != "text" && c.base != "varchar":
			r.fail(fmt.Sprintf(`alter table … alter column %s type text collate "C"`, name),
				"%s is of type %s, which does not compare byte for byte", name, c.full)
		}
		if there && !c.deterministic {
			r.fail(fmt.Sprintf(`alter table … alter column %s type %s collate "C"`, name, c.full),
				"%s has the nondeterministic collation %s: two messages may be taken for one, and one of them would be lost", name, c.collation)
		}
	}
	if c, there := cols[colFingerprint]; !there {
		r.warn("add a column fingerprint bytea, and pass the header Inbox-Fingerprint to inbox_claim",
			"it has no column fingerprint: a message with a known ID and another body is taken for a duplicate")
	} else if c.base != "bytea" {
		r.fail("alter table … alter column fingerprint type bytea using decode(fingerprint, 'hex')",
			"fingerprint is of type %s, want bytea", c.full)
	} else {
		t.hasFingerprint = true
	}
	if c, there := cols[colCreatedAt]; !there || c.base != "timestamptz" {
		r.warn("add a column created_at timestamptz not null default now()",
			"it has no column created_at of type timestamptz: the age of duplicates is not known, and nobody can delete old rows")
	} else {
		t.hasCreatedAt = true
	}
	for name, c := range cols {
		if !c.readable {
			r.fail(grantRemedy(t.name), "the role may not read the column %s", name)
		}
	}
}

// judgeKeys wants one unique index that makes a second row of one key
// impossible, at once and always. It explains the nearest miss.
func judgeKeys(keys []key, name pgx.Identifier, r *report) {
	var near []string
	for _, k := range keys {
		switch {
		case !k.sameColumns():
			continue
		case k.partial:
			near = append(near, fmt.Sprintf("unique index %s is partial: rows outside its condition may repeat", k.name))
		case !k.valid:
			near = append(near, fmt.Sprintf("unique index %s is not valid: its building failed, or a partition lacks it", k.name))
		case !k.immediate:
			near = append(near, fmt.Sprintf("unique constraint %s is deferrable: ON CONFLICT cannot use it", k.name))
		case !k.deterministic:
			near = append(near, fmt.Sprintf("unique index %s has a nondeterministic collation: two messages may be taken for one", k.name))
		default:
			r.ok("unique key %s on (consumer, message_id)", k.name)
			return
		}
	}
	detail := "no unique key on exactly (consumer, message_id): nothing keeps two requests for one message from both having an effect"
	if near != nil {
		detail += "; " + strings.Join(near, "; ")
	}
	r.fail("alter table "+name.Sanitize()+" add primary key (consumer, message_id)", "%s", detail)
}

func schemaRemedy(name pgx.Identifier) string {
	return "create it with the output of: inboxd schema shared --table '" + name.Sanitize() + "'"
}

func grantRemedy(name pgx.Identifier) string {
	s := "grant select on " + name.Sanitize() + " to the role of inbox.url"
	if len(name) == 2 {
		s = "grant usage on schema " + name[:1].Sanitize() + " and " + s
	}
	return s
}

func examineRetention(ctx context.Context, conn *pgx.Conn, t *table, rel relation, r *report) error {
	if !t.plain {
		r.fail("leave inbox.retention off and let the service delete or drop what is old",
			"retention is asked for, but it is no ordinary table")
		return nil
	}
	if !t.hasCreatedAt {
		r.fail("add a column created_at timestamptz not null default now()",
			"retention is asked for, but there is no created_at to go by")
	}
	var may bool
	err := conn.QueryRow(ctx, `select has_table_privilege($1::oid, 'delete')`, rel.oid).Scan(&may)
	if err == nil && !may {
		r.fail("grant delete on "+t.name.Sanitize()+" to the role of inbox.url, or leave inbox.retention off",
			"retention is asked for, but the role may not delete")
	}
	return err
}
