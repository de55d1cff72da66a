package shared

import (
	"context"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"
)

// The kinds of relation in pg_class that matter here.
const (
	kindTable       = "r"
	kindPartitioned = "p"
	kindView        = "v"
)

// relation is a row of pg_class, as far as it matters.
type relation struct {
	oid         uint32
	kind        string
	persistence string
	children    bool
	rowSecurity bool
	readable    bool
}

func readRelation(ctx context.Context, conn *pgx.Conn, name pgx.Identifier) (relation, error) {
	var rel relation
	err := conn.QueryRow(ctx, `
select c.oid, c.relkind::text, c.relpersistence::text, row_security_active(c.oid),
       has_any_column_privilege(c.oid, 'select') and has_schema_privilege(c.relnamespace, 'usage'),
       exists (select from pg_inherits i where i.inhparent = c.oid)
from pg_class c where c.oid = to_regclass($1::text)`, name.Sanitize()).
		Scan(&rel.oid, &rel.kind, &rel.persistence, &rel.rowSecurity, &rel.readable, &rel.children)
	if errors.Is(err, pgx.ErrNoRows) {
		return relation{}, nil
	}
	return rel, err
}

// judge looks at what kind of thing the relation is. It returns the OID of the
// table that must have the key.
func (rel relation) judge(name pgx.Identifier, r *report) uint32 {
	switch {
	case rel.oid == 0:
		r.fail(schemaRemedy(name), "there is no such table for this role's search_path")
		return 0
	case rel.kind == "f":
		r.fail(schemaRemedy(name), "it is a foreign table: nothing can be said about its key, nor about when its rows are seen")
	case rel.kind == "m":
		r.fail("name the table itself, or a plain view of it", "it is a materialized view: it shows the past")
	case rel.kind != kindTable && rel.kind != kindPartitioned && rel.kind != kindView:
		r.fail(schemaRemedy(name), "it is no table")
	case rel.persistence == "u":
		r.fail("alter table "+name.Sanitize()+" set logged", "it is unlogged: a crash of the server empties it")
	case rel.kind == kindTable && rel.children:
		r.fail("use a partitioned table, or no children", "it has child tables, over which a unique key does not reach")
	}
	if rel.rowSecurity {
		r.fail("alter role … bypassrls, or a policy that shows inboxd every row and a role that it does not apply to",
			"row level security applies to the role: rows may be hidden from it, and a processed message would be taken for a new one")
	}
	if !rel.readable {
		r.fail(grantRemedy(name), "the role may not read it")
	}
	return rel.oid
}

// examineView finds the table behind a view that shows every row of one table.
func examineView(ctx context.Context, conn *pgx.Conn, rel relation, r *report) (base uint32, err error) {
	var simple, filters bool
	var bases []uint32
	err = conn.QueryRow(ctx, `
select pg_relation_is_updatable($1::oid, false) & 8 <> 0,
       pg_get_viewdef($1::oid) ~* '\mwhere\M',
       array(select distinct d.refobjid
             from pg_rewrite w
             join pg_depend d on d.classid = 'pg_rewrite'::regclass and d.objid = w.oid
               and d.refclassid = 'pg_class'::regclass and d.refobjid <> w.ev_class
             where w.ev_class = $1::oid)`, rel.oid).Scan(&simple, &filters, &bases)
	if err != nil {
		return 0, err
	}
	if !simple || filters || len(bases) != 1 {
		r.fail("name the table itself, or a view that is: select consumer, message_id, fingerprint, created_at from TABLE",
			"it is a view that does not plainly show every row of one table")
		return 0, nil
	}
	var under relation
	err = conn.QueryRow(ctx, `
select c.oid, c.relkind::text, c.relpersistence::text, c.relrowsecurity,
       exists (select from pg_inherits i where i.inhparent = c.oid)
from pg_class c where c.oid = $1::oid`, bases[0]).
		Scan(&under.oid, &under.kind, &under.persistence, &under.rowSecurity, &under.children)
	if err != nil {
		return 0, err
	}
	under.readable = true // with the rights of the view's owner
	if under.kind == kindView {
		r.fail("name the table itself, or a view of it", "it is a view of a view")
		return 0, nil
	}
	var named bool
	err = conn.QueryRow(ctx, `
select count(*) = 2 from pg_rewrite w
join pg_depend d on d.classid = 'pg_rewrite'::regclass and d.objid = w.oid and d.refobjid = $2::oid
join pg_attribute b on b.attrelid = $2::oid and b.attnum = d.refobjsubid
join pg_attribute v on v.attrelid = $1::oid and v.attname = b.attname
where w.ev_class = $1::oid and b.attname = any ($3::text[])`, rel.oid, under.oid, keyColumns).Scan(&named)
	if err != nil {
		return 0, err
	}
	if !named {
		r.fail("let the view show consumer and message_id under these names", "the view does not show the columns consumer and message_id of its table")
		return 0, nil
	}
	return under.judge(pgx.Identifier{"the table behind the view"}, r), nil
}

// column is a row of pg_attribute, as far as it matters.
type column struct {
	base          string // name of the type, of the base type for a domain
	full          string // the type as SQL writes it
	length        int    // of varchar(n); 0: none
	deterministic bool
	collation     string
	readable      bool
}

func readColumns(ctx context.Context, conn *pgx.Conn, oid uint32) (map[string]column, error) {
	rows, err := conn.Query(ctx, `
select a.attname::text, coalesce(b.typname, t.typname)::text, format_type(a.atttypid, a.atttypmod),
       case when coalesce(b.typname, t.typname) = 'varchar' and a.atttypmod > 4 then a.atttypmod - 4 else 0 end,
       coalesce(c.collisdeterministic, true), coalesce(c.collname, '')::text,
       has_column_privilege(a.attrelid, a.attnum, 'select')
from pg_attribute a
join pg_type t on t.oid = a.atttypid
left join pg_type b on b.oid = t.typbasetype and t.typtype = 'd'
left join pg_collation c on c.oid = a.attcollation
where a.attrelid = $1::oid and a.attnum > 0 and not a.attisdropped and a.attname = any ($2::text[])`,
		oid, append([]string{colFingerprint, colCreatedAt}, keyColumns...))
	if err != nil {
		return nil, err
	}
	cols := make(map[string]column)
	var name string
	var c column
	_, err = pgx.ForEachRow(rows, []any{&name, &c.base, &c.full, &c.length, &c.deterministic, &c.collation, &c.readable},
		func() error { cols[name] = c; return nil })
	return cols, err
}

// key is a unique index.
type key struct {
	name          string
	columns       []string
	valid         bool
	partial       bool
	immediate     bool
	deterministic bool
}

func (k key) sameColumns() bool {
	return len(k.columns) == 2 && slices.Contains(k.columns, colConsumer) && slices.Contains(k.columns, colMessageID)
}

func readKeys(ctx context.Context, conn *pgx.Conn, oid uint32) ([]key, error) {
	rows, err := conn.Query(ctx, `
select c.relname::text,
       array(select coalesce(a.attname::text, '') from generate_series(0, i.indnkeyatts - 1) g
             left join pg_attribute a on a.attrelid = i.indrelid and a.attnum = i.indkey[g] and i.indkey[g] <> 0),
       i.indisvalid and i.indisready and i.indislive, i.indpred is not null, i.indimmediate,
       not exists (select from generate_series(0, i.indnkeyatts - 1) g
                   join pg_collation o on o.oid = i.indcollation[g] where not o.collisdeterministic)
from pg_index i join pg_class c on c.oid = i.indexrelid
where i.indrelid = $1::oid and i.indisunique
order by i.indisprimary desc, c.relname`, oid)
	if err != nil {
		return nil, err
	}
	var keys []key
	var k key
	_, err = pgx.ForEachRow(rows, []any{&k.name, &k.columns, &k.valid, &k.partial, &k.immediate, &k.deterministic},
		func() error { keys = append(keys, k); k.columns = nil; return nil })
	return keys, err
}
