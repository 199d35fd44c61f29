-- Limits, their versions, and the buckets. A missing bucket is a full one.
create schema if not exists dipwell;

create table dipwell.limits (
    id             int generated always as identity primary key,
    name           text collate "C" not null unique,
    -- as defined; null is the default
    algorithm      text not null,
    rate           bigint not null,
    per            text not null,          -- 250ms, 1m, 1mo
    burst          bigint,
    max_debt       bigint,                 -- -1: unlimited
    max_charge     bigint,
    start          text,
    on_change      text not null,
    mode           text not null,
    auth           boolean not null,
    retry_jitter   int not null,           -- percent
    on_store_error text not null,
    timeout_us     bigint not null,        -- 0: as long as the caller's
    list_keys      boolean not null,
    owner          text not null,          -- code, file, api or sql
    -- the present version, and what take needs of its rule
    version        int not null,
    unit           bigint not null,
    every          bigint not null,
    add            bigint not null,
    cap            bigint not null,
    grid           bigint not null,        -- a boundary before any instant that can be counted
    ticks          bigint not null,        -- after which everything has come back
    plain          boolean not null        -- nothing but these numbers decides a take
);

-- Each rule that a bucket may still be counted in, the present one included.
-- Go twin: dipwell.Rule.
create table dipwell.versions (
    limit_id   int not null references dipwell.limits on delete cascade,
    number     int not null,               -- from 1
    since      bigint not null,            -- µs since the Unix epoch
    policy     text not null,              -- how used is converted on the way into this version
    unit       bigint not null,            -- units in a token
    every      bigint not null,            -- µs between ticks; 0: a calendar's
    add        bigint not null,            -- units given back at a tick
    cap        bigint not null,            -- units that take may use
    origin     bigint not null,            -- µs; for a calendar, after each of its boundaries
    burst      bigint not null,            -- tokens: cap / unit
    debt       bigint not null,            -- units that reserve may use beyond cap
    most       bigint not null,            -- tokens: the largest reserve that could ever be granted
    max_charge bigint not null,            -- tokens
    max_used   bigint not null,            -- units
    leaky      boolean not null,           -- take means reserve
    spread     boolean not null,           -- origin depends on the key
    months     bigint not null,            -- in a calendar's unit, else 0
    days       bigint not null,            -- 1 or 7 when the unit is days, else 0
    clock      bigint not null,            -- seconds after local midnight
    zone       text not null,              -- '' without a calendar
    per        text not null,
    start      text,
    primary key (limit_id, number)
);

-- Nothing that changes is indexed, and pages keep room: so updates stay within
-- their page and leave the index alone.
create /*unlogged*/ table dipwell.buckets (
    used     bigint not null,              -- units taken and not yet given back
    ts       bigint not null,              -- µs since the Unix epoch, on this server's clock
    limit_id int not null,
    version  int not null,                 -- of the limit, under which used and ts are counted
    key      text collate "C" not null,    -- '' is the limit's one shared bucket
    primary key (limit_id, key)
) with (fillfactor = 70, vacuum_truncate = false, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- What was taken ahead of time. One call has one id, over all of its keys.
create /*unlogged*/ table dipwell.reservations (
    id       uuid not null,
    limit_id int not null,
    key      text collate "C" not null,
    units    bigint not null,
    version  int not null,                 -- in which units are counted
    due      bigint not null,              -- µs; afterwards it cannot be cancelled
    primary key (id, limit_id, key)
);
create index on dipwell.reservations (limit_id, key);
create index on dipwell.reservations (due);

-- Moves with each change of a limit, for programs that cannot listen.
create table dipwell.revision (n bigint not null);
insert into dipwell.revision values (0);
