-- A daemon that has the inbox to itself writes no leases, and says so here: while
-- one does, nobody else takes anything for new. Older programs would not look.
alter table inboxd.owner add column alone boolean not null default false;

update inboxd.meta set value = '2' where key = 'min_version';
