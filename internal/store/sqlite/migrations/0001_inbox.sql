-- What a store is: its identity, its age, and the oldest version of this schema
-- that a program must know to use it.
create table meta (
  key   text primary key,
  value text not null
) strict, without rowid;

-- Consumer names are long and few, records are many: a record keeps a number.
create table consumer (
  id   integer primary key,
  name text not null unique
) strict;

-- The ledger. No payload: rows stay narrow. Text compares by bytes.
create table processed (
  consumer    integer not null,
  message_id  text    not null,
  fingerprint blob,              -- 8 bytes, or null
  recorded_at integer not null,  -- Unix milliseconds
  primary key (consumer, message_id)
) strict, without rowid;

-- Retention deletes the oldest first. Without this index each pass would read
-- the whole ledger; its own inserts go to the right edge and cost little.
create index processed_by_age on processed (recorded_at);

-- Messages kept whole. The large columns come last: a list never reads them.
create table parked (
  id             text    primary key,
  consumer       text    not null,
  message_id     text    not null,  -- '' where it has none
  body_hash      blob    not null,
  fingerprint    blob,
  reason         text    not null,
  state          text    not null,
  attempts       integer not null,
  requests       integer not null,
  slow           integer not null,
  replays        integer not null,
  last_status    integer not null,
  error          text    not null,
  queue          text    not null,
  redelivered    integer not null,
  first_received integer not null,
  last_attempt   integer not null,
  parked_at      integer not null,
  due            integer not null,
  taken          integer not null default 0,
  envelope       text    not null,
  headers        text    not null,
  answer         blob    not null,
  body           blob    not null
) strict;

-- The same message delivered again after its ack was lost is not kept twice.
create unique index parked_once on parked (consumer, message_id, body_hash) where message_id <> '';
create index parked_due on parked (consumer, due) where state = 'deferred' and taken = 0;
create index parked_kinds on parked (consumer, state, reason, parked_at);

create table audit (
  id       integer primary key,
  at       integer not null,
  actor    text    not null,
  action   text    not null,
  consumer text    not null,
  target   text    not null,
  reason   text    not null
) strict;

create table paused (
  consumer text primary key,
  why      text    not null,
  at       integer not null
) strict, without rowid;

insert into meta values ('min_version', '1');
