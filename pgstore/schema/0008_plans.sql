-- Plans, parents, holds and overrides of limits. Null is the default.
alter table dipwell.limits
    add column plans      text,            -- as Plans.String writes them
    add column parent     text,
    add column parts      bigint,
    add column ttl_us     bigint,          -- 0: the longest there is
    add column on_expire  text,
    add column overridden boolean,         -- keys may have overrides; null: none ever had one
    add column lease_us   bigint,          -- null: processes take no tokens in advance
    add column shards     bigint,          -- null: 1
    add column adaptive   text;            -- as Adaptive.String writes it; null: the rate is fixed
-- The settings of the limit at each version, from which plans and overrides of the
-- version are compiled; null for versions of before.
alter table dipwell.versions add column settings text;
-- The rate of an adaptive limit over time: the level before the first change, and for each
-- change its time, the level and the ticks until then. A level is 1/1024 of the ceiling.
alter table dipwell.versions add column levels bigint[];

-- The plans of each version: of its rule, what a plan may change.
create table dipwell.plans (
    limit_id   int not null,
    number     int not null,               -- of rows under the plan: version + index << 20
    version    int not null,
    name       text collate "C" not null,
    mode       text,                       -- enforce, shadow, unlimited, blocked; null: the limit's
    callable   boolean not null,           -- false: only an override gives it
    unit       bigint not null,
    add        bigint not null,
    cap        bigint not null,
    debt       bigint not null,
    max_charge bigint not null,
    max_used   bigint not null,
    primary key (limit_id, number),
    unique (limit_id, name, version),
    foreign key (limit_id, version) references dipwell.versions on delete cascade
);

-- What the next step of an adaptive rate depends on.
create table dipwell.paces (
    limit_id int primary key references dipwell.limits on delete cascade,
    begun    bigint not null,              -- µs: when the present window began; 0: nothing was observed yet
    count    bigint not null,              -- calls that ended in the window before
    slow     bigint not null,              -- of them, slower than the target
    failed   bigint not null,
    cut      boolean not null,             -- the window before ended with a cut
    reason   text not null,                -- why the level changed last
    changed  bigint not null,              -- µs: when
    drifts   bigint not null               -- µs: when it drifts if nothing is observed; 0: it does not
) with (fillfactor = 50);

-- What was observed in the present window of an adaptive limit. After a crash it is empty.
create unlogged table dipwell.samples (
    limit_id int not null,
    count    bigint not null,              -- calls that ended
    slow     bigint not null,
    failed   bigint not null,
    taken    bigint not null               -- tokens
) with (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
create index on dipwell.samples (limit_id);

-- The definitions that call sites have made of a limit. In plans each is called # and
-- its index, at the versions of the limit at which it compiles.
create table dipwell.call_sites (
    limit_id int not null references dipwell.limits on delete cascade,
    i        int not null,                 -- rows under it have the version (1024 + i) << 20 + the limit's
    settings text not null,                -- as those of a plan in limits.plans
    made     bigint not null,              -- µs since the Unix epoch
    looked   bigint not null,              -- µs: when rows that name it were last looked for
    ended    bigint,                       -- µs: since then no row named it, and call sites do not get it; null: it is in use
    primary key (limit_id, i)
);

-- What decides the calls of a key in place of the limit, with the rule compiled from
-- it and a version of the limit. Logged, whatever buckets is.
create table dipwell.key_overrides (
    limit_id   int not null references dipwell.limits on delete cascade,
    key        text collate "C" not null,
    plan       text,                       -- or the next three; null: the limit's
    rate       bigint,
    per        text,
    burst      bigint,
    until      bigint,                     -- µs since the Unix epoch; null: no end
    note       text,
    id         int not null,               -- rows of buckets under it have the version id - 2^31
    version    int not null,               -- of the limit, of which the rest is
    mode       text,                       -- as in plans
    unit       bigint not null,
    add        bigint not null,
    cap        bigint not null,
    debt       bigint not null,
    max_charge bigint not null,
    max_used   bigint not null,
    primary key (limit_id, key)
);
create index on dipwell.key_overrides (until) where until is not null;

-- What holds took: a row for each limit and key of a hold. It stays for a while
-- after the hold has ended, so that the same call again has the same answer.
create /*unlogged*/ table dipwell.hold_parts (
    expires  bigint not null,              -- µs: of the hold
    due      bigint not null,              -- µs: while it lives expires, then when the row goes
    ttl      bigint not null,              -- µs: as asked for
    units    bigint not null,              -- taken
    tokens   bigint not null,              -- asked for
    number   bigint not null,              -- in the list of its row, as of reservations; 0: of none
    mark     bigint not null,
    limit_id int not null,
    version  int not null,                 -- in which units are counted
    part     int not null,                 -- from 1
    parts    int not null,                 -- of the hold
    takes    int not null,                 -- a bit for each take of the call that it is for
    live     boolean not null,             -- nothing has been given back yet
    free     boolean not null,             -- it took nothing, and settling it charges nothing
    keep     boolean not null,             -- nothing is given back when it expires
    reset    boolean not null,             -- it ended with a reset of its key
    settled  boolean not null,
    id       text collate "C" not null,
    key      text collate "C" not null,
    plan     text collate "C",             -- that the call named
    call     text collate "C",             -- what else a repeated call must agree in; null: nothing
    cost     bigint,                       -- that it was settled to
    primary key (id, part)
) with (vacuum_truncate = false, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
create index on dipwell.hold_parts (limit_id, key, expires) where live;
create index on dipwell.hold_parts (due);

-- What people have changed: the last 10,000 entries, and none older than 400 days.
create table dipwell.audit (
    id         text collate "C" primary key, -- 14 hexadecimal digits of the time, and 8 more
    at         timestamptz not null,
    who        text not null,
    action     text not null,
    limit_name text not null,
    key        text not null,
    what       text not null,
    note       text not null
);

-- The busiest keys of each hour, by process: the last 5,376, and none older than a week.
create table dipwell.top_hours (
    id      text collate "C" primary key, -- as in audit
    at      timestamptz not null,
    process text not null,
    report  jsonb not null
);

-- The rows of a key that many connections take from at the same time. While it has
-- them, its row of buckets has the lows {0}, and its used and ts say nothing. Each take
-- reads all rows of the key; with a low fillfactor, old versions of them go soon.
create /*unlogged*/ table dipwell.shards (
    used     bigint not null,              -- as in buckets, by a part of the rule
    ts       bigint not null,
    limit_id int not null,
    version  int not null,                 -- a version of the limit
    shard    int not null,                 -- from 0; a key has as many as its version of the limit
    key      text collate "C" not null,
    primary key (limit_id, key, shard)
) with (fillfactor = 25, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
do $$
begin
    if (select relpersistence from pg_class where oid = 'dipwell.buckets'::regclass) = 'u' then
        alter table dipwell.hold_parts set unlogged;
        alter table dipwell.shards set unlogged;
    end if;
end $$;
