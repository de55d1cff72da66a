-- The business table of the recipes. order_id has no unique key on purpose: an
-- order that is taken twice shows.
create table if not exists orders (
  id           bigint generated always as identity primary key,
  order_id     text not null check (order_id <> ''),
  customer     text not null,
  amount_cents bigint not null check (amount_cents >= 0),
  created_at   timestamptz not null default now()
);
