package shared

import (
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

//go:embed schema_plain.sql
var schemaPlain string

//go:embed schema_uuidv7.sql
var schemaUUIDv7 string

// SchemaOptions choose a variant of the DDL that Schema returns.
type SchemaOptions struct {
	Table     string // "" is inbox
	UUIDv7    bool   // message IDs are UUIDs of version 7; partitioned by day
	Role      string // a role that inboxd logs in as, to be granted SELECT
	Retention bool   // grant the role DELETE too, for a retention run by inboxd
}

// Schema returns the DDL of a shared inbox: the table and the function
// inbox_claim, each with the version it is commented with in the database.
func Schema(o SchemaOptions) (string, error) {
	if o.Table == "" {
		o.Table = DefaultTable
	}
	name, err := parseTable(o.Table)
	if err != nil {
		return "", err
	}
	if o.UUIDv7 && o.Retention {
		return "", errors.New("retention: with partitions by day old rows go by dropping a partition, which the owner of the table does")
	}
	if o.Retention && o.Role == "" {
		return "", errors.New("retention: needs the role that deletes")
	}
	text := schemaPlain
	if o.UUIDv7 {
		text = schemaUUIDv7
	}
	return expand(text, name) + grants(name, o) + "\ncommit;\n", nil
}

func expand(text string, name pgx.Identifier) string {
	base := name[len(name)-1]
	beside := func(object string) string {
		return append(name[:len(name)-1:len(name)-1], object).Sanitize()
	}
	prefix := ""
	if len(name) == 2 {
		prefix = name[:1].Sanitize() + "."
	}
	return strings.NewReplacer(
		"{{table}}", name.Sanitize(),
		// Inside format's template, where a percent sign is a directive.
		"{{format}}", strings.ReplaceAll(strings.ReplaceAll(name.Sanitize(), "%", "%%"), "'", "''"),
		"{{index}}", pgx.Identifier{base + "_created_at"}.Sanitize(),
		"{{function}}", beside("inbox_claim"),
		"{{create_partitions}}", beside("inbox_create_partitions"),
		"{{uuid_floor}}", beside("inbox_uuid_floor"),
		"{{base}}", literal(base),
		"{{prefix}}", literal(prefix),
		"{{example}}", beside(base+"_20260101"),
	).Replace(text)
}

func grants(name pgx.Identifier, o SchemaOptions) string {
	if o.Role == "" {
		return ""
	}
	role := pgx.Identifier{o.Role}.Sanitize()
	verbs := "select"
	if o.Retention {
		verbs = "select, delete"
	}
	var b strings.Builder
	b.WriteString("\n-- What inboxd may do, and nothing else.\n")
	if len(name) == 2 {
		fmt.Fprintf(&b, "grant usage on schema %s to %s;\n", name[:1].Sanitize(), role)
	}
	fmt.Fprintf(&b, "grant %s on %s to %s;\n", verbs, name.Sanitize(), role)
	return b.String()
}

func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// SchemaMain is the command `inboxd schema shared`. It prints the DDL that its
// flags ask for and returns the exit code.
func SchemaMain(args []string, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("inboxd schema shared", flag.ContinueOnError)
	fs.SetOutput(stderr)
	if slices.ContainsFunc(args, func(a string) bool { return a == "-h" || a == "-help" || a == "--help" }) {
		fs.SetOutput(stdout) // asked for, so no error
	}
	fs.Usage = func() {
		fmt.Fprint(fs.Output(), "usage: inboxd schema shared [flags]\n\n"+
			"Prints the DDL of the inbox table and of inbox_claim, for the service's own\n"+
			"PostgreSQL database: inboxd schema shared | psql \"$DATABASE_URL\"\n\n")
		fs.PrintDefaults()
	}
	var o SchemaOptions
	fs.StringVar(&o.Table, "table", DefaultTable, "the table's `name`, with its schema where it needs one")
	fs.BoolVar(&o.UUIDv7, "uuidv7", false, "message IDs are UUIDs of version 7: partition by the day in them")
	fs.StringVar(&o.Role, "role", "", "grant SELECT on the table to the `role` that inboxd logs in as")
	fs.BoolVar(&o.Retention, "retention", false, "grant the role DELETE too, so that inboxd can delete old rows")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	if fs.NArg() > 0 {
		fmt.Fprintf(stderr, "inboxd schema shared: unexpected argument %q\n", fs.Arg(0))
		return 2
	}
	ddl, err := Schema(o)
	if err != nil {
		fmt.Fprintf(stderr, "inboxd schema shared: %v\n", err)
		return 2
	}
	if _, err := io.WriteString(stdout, ddl); err != nil {
		return 1
	}
	return 0
}
