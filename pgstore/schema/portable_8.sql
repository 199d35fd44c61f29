-- Plans, parents, holds and overrides, as 0008_plans.sql. For new tables and those of
-- version 7 and before.
alter table dipwell.limits add column if not exists plans text;

alter table dipwell.limits add column if not exists parent text;

alter table dipwell.limits add column if not exists parts bigint;

alter table dipwell.limits add column if not exists ttl_us bigint;

alter table dipwell.limits add column if not exists on_expire text;

alter table dipwell.limits add column if not exists adaptive text;

alter table dipwell.limits add column if not exists overridden boolean;

alter table dipwell.limits add column if not exists lease_us bigint;

alter table dipwell.limits add column if not exists shards bigint;

-- The definitions that call sites have made, as limits.plans with their indexes as names,
-- and when each has ended, in µs since the Unix epoch: "3=1700000000000000 7=…".
alter table dipwell.limits add column if not exists call_sites text;

alter table dipwell.limits add column if not exists sites_ended text;

alter table dipwell.versions add column if not exists settings text;

-- What a record of a hold has besides; due is then the time from which on a sweep may
-- end it, and ends is null where that is the same.
alter table dipwell.reservations add column if not exists hold text;

alter table dipwell.reservations add column if not exists expires bigint;

alter table dipwell.reservations add column if not exists ends bigint;

-- What decides the calls of a key in place of the limit. Its bucket has a row, whose
-- version is id - 2^31.
create table if not exists dipwell.overrides (
    limit_id int not null,
    key      text {collate} not null,
    plan     text,                         -- or the next three; null: the limit's
    rate     bigint,
    per      text,
    burst    bigint,
    until    bigint,                       -- µs since the Unix epoch; null: no end
    note     text,
    id       int not null,
    version  int not null,                 -- of the limit
    primary key ({hash})
);

-- The rate of each version of an adaptive limit, and what was observed in its present
-- window, which began at begun, in µs since the Unix epoch.
create table if not exists dipwell.rates (
    limit_id int not null,
    number   int not null,
    state    text not null,                -- JSON: the levels, and what the next step needs
    begun    bigint not null,
    count    bigint not null,
    slow     bigint not null,
    failed   bigint not null,
    taken    bigint not null,
    primary key (limit_id, number)
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
    note       text not null
);

-- The busiest keys of each hour, by process: the last 5,376, and none older than a week.
create table if not exists dipwell.top_hours (
    id      text {collate} primary key, -- as in audit
    at      timestamptz not null,
    process text not null,
    report  jsonb not null
);
