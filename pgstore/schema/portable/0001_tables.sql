-- Only tables, for engines that speak PostgreSQL's protocol: the program decides,
-- and uses statements that all of them support. A missing bucket is full.
create table if not exists dipwell.limits (
    id         int primary key,            -- never used again: rows of a limit that is gone stay void
    name       text not null unique,
    definition text not null               -- JSON: settings as in the configuration, owner, and versions, the present one and those before
);

create table if not exists dipwell.buckets (
    limit_id int not null,
    key      text {collate} not null,
    version  int not null,
    used     bigint not null,
    ts       bigint not null,
    seen     bigint not null,              -- the clock at the last take; 0: the same as ts
    lows     text,                         -- of a row with records, as JSON: how much of what they took is still there
    low      bigint,                       -- the last of these numbers, lowered by each take
    due      bigint,                       -- before this time no record ends
    primary key ({hash})
);

-- What a call took of a bucket and may still give back. Number 0: a hold that took nothing.
create table if not exists dipwell.records (
    limit_id int not null,
    key      text {collate} not null,
    mark     bigint not null,
    number   bigint not null,
    hold     text {collate} not null,      -- id of the hold that it is of; '': a reservation's
    due      bigint not null,              -- from then on a sweep may end it
    record   text not null,                -- JSON
    primary key (limit_id, key, mark, number, hold)
);

create index if not exists records_by_due on dipwell.records (due);

-- Reservations. Their records are in records.
create table if not exists dipwell.reservations (
    id    uuid primary key,
    due   bigint not null,
    parts text not null                    -- JSON: what it took of each key
);

create index if not exists reservations_by_due on dipwell.reservations (due);

create table if not exists dipwell.revision (
    one int primary key,
    n   bigint not null
);

insert into dipwell.revision (one, n) values (1, 0) on conflict (one) do nothing;

-- What decides the calls of a key in place of the limit. Its bucket has a row, whose
-- version is the override's id - 2^31.
create table if not exists dipwell.overrides (
    limit_id int not null,
    key      text {collate} not null,
    version  int not null,                 -- of the limit
    until    bigint,                       -- µs since the Unix epoch; null: no end
    under    boolean,                      -- true: a standing one is under it; null: there is none
    override text not null,                -- JSON
    primary key ({hash})
);

-- Holds. Their records are in records.
create table if not exists dipwell.holds (
    id     text {collate} primary key,
    forget bigint not null,                -- when the row goes
    hold   text not null                   -- JSON
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
