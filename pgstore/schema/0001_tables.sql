-- Limits, their versions, and the buckets. A missing bucket is a full one.
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
    plain          boolean not null,       -- nothing but these numbers decides a take of its row
    spread         boolean not null,       -- nor anything else, once grid is moved by an offset of the key's own
    shared         boolean not null,       -- one bucket for everybody: its calls have no key
    -- more of what was defined; null is the default
    plans          text,                   -- as Plans.String writes them
    parent         text,
    parts          bigint,
    ttl_us         bigint,                 -- 0: the longest there is
    on_expire      text,
    overridden     boolean,                -- keys may have overrides; null: none ever had one
    lease_us       bigint,                 -- null: processes take no tokens in advance
    shards         bigint,                 -- null: 1
    adaptive       text                    -- as Adaptive.String writes it; null: the rate is fixed
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
    clock      bigint not null,            -- seconds after the unit begins, as if each month had 31 days
    zone       text not null,              -- '' without a calendar
    per        text not null,
    start      text,
    -- The settings of the limit at this version, from which plans and overrides of the
    -- version are compiled.
    settings   text not null,
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
    lows     bigint[],                     -- null: no record can give anything back
    low      bigint,                       -- the last low of lows
    due      bigint,                       -- µs; no record ends before it; null: none ends
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
    number   bigint not null,              -- in the list of lows of its row
    mark     bigint not null,              -- of that list
    slack    bigint,
    rest     boolean not null,
    part_due bigint not null,
    parts    int not null,
    primary key (id, limit_id, key)
);
create index on dipwell.reservations (limit_id, key);
create index on dipwell.reservations (due);

-- The changes of limits, for programs that cannot listen: each change adds a row, and so
-- waits for no other one. The sum of n moves with each change that is committed, in
-- whatever order that happens.
create table dipwell.revision (
    id bigint generated always as identity primary key,
    n  bigint not null
);

-- Where the sweep of buckets goes on, and what sweeps did. It has one row, which
-- a sweep locks, so that one at a time goes over the table.
create table dipwell.sweep_state (
    page        bigint not null,           -- of buckets: where the next sweep goes on
    began       bigint not null,           -- µs since the Unix epoch: the pass under way; 0: none
    found       bigint not null,           -- rows deleted by the pass under way
    passed      bigint not null,           -- µs: when the last whole pass ended; 0: none did
    took        bigint not null,           -- µs: how long the last whole pass took, rests included
    pass_swept  bigint not null,           -- rows that it deleted
    passes      bigint not null,           -- whole passes
    swept       bigint not null,           -- rows deleted by all sweeps
    spent       bigint not null,           -- µs that all sweeps worked
    one         int primary key default 1 check (one = 1)
);
insert into dipwell.sweep_state values (0, 0, 0, 0, 0, 0, 0, 0, 0);

-- The plans of each version: of its rule, what a plan may change.
create table dipwell.plans (
    limit_id   int not null,
    number     int not null,               -- of rows under the plan: version + index << 20
    version    int not null,
    name       text collate "C" not null,
    mode       text,                       -- enforce, shadow, unlimited, blocked; null: the limit's
    callable   text not null,              -- true; false: only an override gives it; children
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
) with (vacuum_truncate = false);
create index on dipwell.key_overrides (until) where until is not null;

-- What holds took: a row for each limit and key of a hold. It stays for a while
-- after the hold has ended, so that the same call again has the same answer.
create /*unlogged*/ table dipwell.hold_parts (
    expires  bigint not null,              -- µs: of the hold
    due      bigint not null,              -- µs: while it lives expires, then when the row goes
    ttl      bigint not null,              -- µs: as asked for
    units    bigint not null,              -- taken
    tokens   bigint not null,              -- asked for
    number   bigint not null,              -- in the list of its row, as of reservations; 0: of none; if free, among those
    mark     bigint not null,
    limit_id int not null,
    version  int not null,                 -- in which units are counted
    part     int not null,                 -- from 1
    parts    int not null,                 -- of the hold
    takes    int not null,                 -- a bit for each take of the call that it is for
    live     boolean not null,             -- nothing has been given back yet
    free     boolean not null,             -- it took nothing, settling it charges nothing, and it is never live
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
create index on dipwell.hold_parts (limit_id, key, number) where free and not settled;
create index on dipwell.hold_parts (due);

-- What people have changed in the last 400 days.
create table dipwell.audit (
    id         text collate "C" primary key, -- 14 hexadecimal digits of the time, and 8 more
    at         timestamptz not null,
    who        text not null,
    action     text not null,
    limit_name text not null,
    key        text not null,
    what       text not null,
    note       text not null,
    role       text not null default session_user -- who may name anybody
);

-- The busiest keys of each hour, by process: the last 5,376, and none older than a week.
create table dipwell.top_hours (
    id      text collate "C" primary key, -- as in audit
    at      timestamptz not null,
    process text not null,
    report  jsonb not null
);
