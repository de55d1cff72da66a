-- What a store is: its identity, and the oldest version of this schema that a
-- program must know to use it.
create table inboxd.meta (
  key   text collate "C" primary key,
  value text not null
);

-- The ledger. Keys compare by bytes. No payload: rows stay narrow. Without
-- insert-driven vacuum an insert-only table is first vacuumed when it must be.
create table inboxd.processed (
  consumer     text collate "C" not null check (octet_length(consumer) between 1 and 200),
  message_id   text collate "C" not null check (octet_length(message_id) between 1 and 255),
  fingerprint  bytea check (octet_length(fingerprint) = 8),
  processed_at timestamptz not null default now(),
  primary key (consumer, message_id)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05,
        autovacuum_analyze_scale_factor = 0.02);

-- Retention deletes the oldest first. A btree, not BRIN: freed pages are reused,
-- after which every block range spans old and new and BRIN finds nothing. Rows of
-- one batch share one time, so that the btree stores each time once and its
-- inserts go to the right edge.
create index processed_by_age on inboxd.processed (processed_at);

-- One row a daemon, renewed every few seconds by the server's clock. Leases and
-- taken messages belong to it, so that none of them needs renewing by itself. Where
-- it runs is written down so that its successor on the same machine can see that
-- it is gone, and need not wait.
create table inboxd.owner (
  id         uuid primary key,
  name       text not null,
  home       text not null,
  pid        int not null,
  started    bigint not null,
  expires_at timestamptz not null
) with (fillfactor = 50);

-- Who forwards which key at this moment. Unlogged: after a crash of the server
-- nobody's request is known to be in flight, and the ledger is what counts. Rows
-- live for milliseconds, so vacuum goes by their number.
create unlogged table inboxd.lease (
  consumer   text collate "C" not null,
  message_id text collate "C" not null,
  owner      uuid not null,
  primary key (consumer, message_id)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0);

-- Messages kept whole. Bodies are stored apart by PostgreSQL (TOAST): a list
-- does not read them.
create table inboxd.parked (
  id             text collate "C" primary key,
  consumer       text collate "C" not null,
  message_id     text collate "C" not null,  -- '' where it has none
  body_hash      bytea not null,
  fingerprint    bytea,
  reason         text not null,
  state          text not null check (state in ('parked', 'deferred')),
  attempts       int not null,
  requests       int not null,
  slow           int not null,
  replays        int not null,
  last_status    int not null,
  error          text not null,
  queue          text not null,
  redelivered    boolean not null,
  first_received timestamptz,
  last_attempt   timestamptz,
  parked_at      timestamptz not null,
  due            timestamptz,
  taken_by       uuid,
  envelope       text not null,
  headers        text not null,
  answer         bytea not null,
  body           bytea not null
);

-- The same message delivered again after its ack was lost is not kept twice.
create unique index parked_once on inboxd.parked (consumer, message_id, body_hash) where message_id <> '';
create index parked_due on inboxd.parked (consumer, due) where state = 'deferred';

create table inboxd.audit (
  id       bigint generated always as identity primary key,
  at       timestamptz not null,
  actor    text not null,
  action   text not null,
  consumer text not null,
  target   text not null,
  reason   text not null
);

create table inboxd.paused (
  consumer text collate "C" primary key,
  why      text not null,
  at       timestamptz not null default now()
);

insert into inboxd.meta values ('min_version', '1'), ('store_id', gen_random_uuid()::text);
