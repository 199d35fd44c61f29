-- Only tables, for engines that speak PostgreSQL's protocol: the program decides,
-- and uses statements that all of them support. A missing bucket is full.
create table if not exists dipwell.limits (
    id             int primary key,
    name           text not null unique,
    algorithm      text not null,
    rate           bigint not null,
    per            text not null,
    burst          bigint,
    max_debt       bigint,
    max_charge     bigint,
    start          text,
    on_change      text not null,
    mode           text not null,
    auth           boolean not null,
    retry_jitter   int not null,
    on_store_error text not null,
    timeout_us     bigint not null,
    list_keys      boolean not null,
    usage          boolean not null,
    owner          text not null,
    version        int not null,
    plans          text,
    parent         text,
    parts          bigint,
    ttl_us         bigint,
    on_expire      text,
    adaptive       text,
    overridden     boolean,
    lease_us       bigint,
    shards         bigint,
    block_us       bigint,
    shared         boolean not null
);

create table if not exists dipwell.versions (
    limit_id   int not null,
    number     int not null,
    since      bigint not null,
    policy     text not null,
    unit       bigint not null,
    every      bigint not null,
    add        bigint not null,
    cap        bigint not null,
    origin     bigint not null,
    burst      bigint not null,
    debt       bigint not null,
    most       bigint not null,
    max_charge bigint not null,
    max_used   bigint not null,
    leaky      boolean not null,
    spread     boolean not null,
    sliding    boolean not null,
    per        text not null,
    start      text,
    settings   text not null,
    primary key (limit_id, number)
);

create table if not exists dipwell.buckets (
    limit_id int not null,
    key      text {collate} not null,
    version  int not null,
    used     bigint not null,
    ts       bigint not null,
    seen     bigint not null,              -- the clock at the last take; 0: the same as ts
    -- What may be given back: mark, next, due, live, holds, waits (0 or 1), and a pair
    -- for each entry: number, units.
    lows     bigint[],
    low      bigint,                       -- the last of these units, lowered by each take
    primary key ({hash})
);

create table if not exists dipwell.reservations (
    id       uuid not null,
    limit_id int not null,
    key      text {collate} not null,
    units    bigint not null,
    unit     bigint not null,              -- of these in a token
    due      bigint not null,              -- from then on a sweep may end it
    part_due bigint not null,
    number   bigint not null,
    mark     bigint not null,
    slack    bigint,
    rest     boolean not null,
    parts    int not null,
    hold     text,                         -- the hold whose record it is
    expires  bigint,                       -- of the hold
    ends     bigint,                       -- null: as due
    primary key (id, limit_id, key)
);

create index if not exists reservations_by_key on dipwell.reservations (limit_id, key);

create index if not exists reservations_by_due on dipwell.reservations (due);

create table if not exists dipwell.revision (
    one int primary key,
    n   bigint not null
);

insert into dipwell.revision (one, n) values (1, 0) on conflict (one) do nothing;

-- What decides the calls of a key in place of the limit. Its bucket has a row, whose
-- version is id - 2^31.
create table if not exists dipwell.overrides (
    limit_id int not null,
    key      text {collate} not null,
    plan     text,                         -- or the next three; null: the limit's
    rate     bigint,
    per      text,
    burst    bigint,
    start    text,                         -- of windows; null: the limit's
    until    bigint,                       -- µs since the Unix epoch; null: no end
    note     text,
    id       int not null,
    version  int not null,                 -- of the limit
    under    text,                         -- JSON of the standing override under one that ends
    primary key ({hash})
);

-- Holds. Their records are in reservations.
create table if not exists dipwell.holds (
    id       text {collate} primary key,
    call     text not null,                -- a repeated call has the same
    ttl      bigint not null,
    expires  bigint not null,
    forget   bigint not null,              -- when the row goes
    settled  boolean not null,
    costs    bigint[],                     -- that it was settled to; null: as held
    parts    text not null                 -- JSON: what it took of each key
);

create index if not exists holds_by_forget on dipwell.holds (forget);

-- What people have changed: the last 10,000 entries, and none older than 400 days.
create table if not exists dipwell.audit (
    id         text {collate} primary key, -- 14 hexadecimal digits of the time, and 8 more
    at         timestamptz not null,
    who        text not null,
    action     text not null,
    limit_name text not null,
    key        text not null,
    what       text not null,
    note       text not null,
    role       text not null default session_user -- who may name anybody
);

-- What each key of a limit with usage was answered in each hour of the last 31 days.
create table if not exists dipwell.usage (
    limit_id int not null,
    key      text {collate} not null,
    hour     timestamptz not null,
    by_sql   boolean not null, -- false
    allowed  bigint not null,
    refused  bigint not null,
    tokens   bigint not null,
    primary key (limit_id, key, hour, by_sql)
);

-- The busiest keys of each hour, by process: the last 5,376, and none older than a week.
create table if not exists dipwell.top_hours (
    id        text {collate} primary key, -- as in audit
    at        timestamptz not null,
    process   text not null,
    of_minute boolean not null,
    report    jsonb not null
);
