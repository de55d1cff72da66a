-- inboxd shared inbox for message IDs that are UUIDs of version 7, partitioned
-- by the day in the ID, version 1. Old rows go by dropping a day's partition.
-- Run it in the service's own database, as the owner of the service's tables;
-- running it again changes nothing.
begin;

create table if not exists {{table}} (
  consumer    text collate "C" not null check (octet_length(consumer) between 1 and 200),
  message_id  uuid not null check (substr(message_id::text, 15, 1) = '7'),
  fingerprint bytea,
  created_at  timestamptz not null default now(),
  primary key (consumer, message_id)
) partition by range (message_id);
comment on table {{table}} is 'inboxd shared inbox by day of UUIDv7, version 1';

-- inbox_create_partitions makes the partitions of the days first to last that
-- are missing, and returns how many it made. Call it from a daily job, a week
-- ahead: a message whose day has no partition is refused (SQLSTATE 23514) until
-- there is one. There is no default partition on purpose: it would forbid
-- detaching a partition without a lock on the table.
create or replace function {{create_partitions}}(
  first date default (now() at time zone 'utc')::date - 1,
  last  date default (now() at time zone 'utc')::date + 7)
returns integer
language plpgsql
set search_path from current
as $partitions$
declare
  day  date;
  made integer := 0;
  name text;
begin
  for day in select d::date from generate_series(first, last, interval '1 day') as d loop
    name := {{base}} || to_char(day, '_YYYYMMDD');
    if to_regclass({{prefix}} || quote_ident(name)) is null then
      execute format('create table %s partition of {{format}} for values from (%L) to (%L)',
        {{prefix}} || quote_ident(name), {{uuid_floor}}(day), {{uuid_floor}}(day + 1));
      made := made + 1;
    end if;
  end loop;
  return made;
end
$partitions$;

-- The smallest UUID whose first 48 bits are the first millisecond of the day.
create or replace function {{uuid_floor}}(day date) returns uuid
language sql
immutable
as $floor$
  select rpad(lpad(to_hex((extract(epoch from $1) * 1000)::bigint), 12, '0'), 32, '0')::uuid
$floor$;

-- To drop a day, outside a transaction, without blocking anybody:
--   alter table {{table}} detach partition {{example}} concurrently;
--   drop table {{example}};
-- A message that comes again after its day was dropped is refused, not
-- processed a second time.

-- inbox_claim is the one statement a handler needs, in the transaction that
-- changes its data, and before it changes anything:
--   true   the message is new: go on, and commit
--   false  its change is committed already: roll back and answer 200
-- fingerprint is the value of the header Inbox-Fingerprint, or null or ''. With
-- one, a key that was used for another body raises SQLSTATE IB422: answer 422.
-- Of two transactions with one key the second waits for the first to end.
create or replace function {{function}}(consumer text, message_id text, fingerprint text default null)
returns boolean
language plpgsql
volatile
set search_path from current
as $claim$
#variable_conflict use_column
declare
  id    constant uuid  := $2::uuid;
  sent  constant bytea := decode(nullif($3, ''), 'hex');
  known bytea;
begin
  for attempt in 1 .. 3 loop
    insert into {{table}} as i (consumer, message_id, fingerprint)
    values ($1, id, sent)
    on conflict (consumer, message_id) do nothing;
    if found then
      return true;
    end if;
    select i.fingerprint into known from {{table}} as i
    where i.consumer = $1 and i.message_id = id;
    if found then
      if known <> sent then -- null, where either side has none, is not true
        raise exception 'message % of consumer % was processed with another body', $2, $1
          using errcode = 'IB422';
      end if;
      return false;
    end if;
    -- The row was deleted between the two statements: claim it again.
  end loop;
  raise exception 'the row of message % of consumer % comes and goes', $2, $1
    using errcode = 'serialization_failure';
end
$claim$;
comment on function {{function}}(text, text, text) is 'inboxd shared inbox by day of UUIDv7, version 1';

select {{create_partitions}}();
