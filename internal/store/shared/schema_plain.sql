-- inboxd shared inbox, version 1. Run it in the service's own database, as the
-- owner of the service's tables; running it again changes nothing.
begin;

create table if not exists {{table}} (
  consumer    text collate "C" not null check (octet_length(consumer) between 1 and 200),
  message_id  text collate "C" not null check (octet_length(message_id) between 1 and 255),
  fingerprint bytea,
  created_at  timestamptz not null default now(),
  primary key (consumer, message_id)
);
comment on table {{table}} is 'inboxd shared inbox, version 1';

-- Small, and enough to find old rows: the table grows in the order of time.
create index if not exists {{index}} on {{table}} using brin (created_at);

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
  sent  constant bytea := decode(nullif($3, ''), 'hex');
  known bytea;
begin
  for attempt in 1 .. 3 loop
    insert into {{table}} as i (consumer, message_id, fingerprint)
    values ($1, $2, sent)
    on conflict (consumer, message_id) do nothing;
    if found then
      return true;
    end if;
    select i.fingerprint into known from {{table}} as i
    where i.consumer = $1 and i.message_id = $2;
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
comment on function {{function}}(text, text, text) is 'inboxd shared inbox, version 1';
