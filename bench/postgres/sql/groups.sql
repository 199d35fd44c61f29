-- Counters for groups by hand: one for the key, one for its tenant, one for all keys.
create schema byhand;
create unlogged table byhand.keys (key text primary key, n bigint not null) with (fillfactor = 70);
create unlogged table byhand.tenants (like byhand.keys including all) with (fillfactor = 70);
create unlogged table byhand.globals (like byhand.keys including all) with (fillfactor = 70);
insert into byhand.keys select 'user:' || k, 0 from generate_series(0, 9999) as k;
insert into byhand.tenants table byhand.keys;
insert into byhand.globals table byhand.keys;
