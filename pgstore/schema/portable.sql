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
    owner          text not null,
    version        int not null
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
    per        text not null,
    start      text,
    primary key (limit_id, number)
);

create table if not exists dipwell.buckets (
    limit_id int not null,
    key      text {collate} not null,
    version  int not null,
    used     bigint not null,
    ts       bigint not null,
    seen     bigint not null,              -- the clock at the last take; 0: the same as ts
    primary key ({hash})
);

create table if not exists dipwell.reservations (
    id       uuid not null,
    limit_id int not null,
    key      text {collate} not null,
    units    bigint not null,
    version  int not null,
    due      bigint not null,
    primary key (id, limit_id, key)
);

create index if not exists reservations_by_key on dipwell.reservations (limit_id, key);

create index if not exists reservations_by_due on dipwell.reservations (due);

create table if not exists dipwell.revision (
    one int primary key,
    n   bigint not null
);

insert into dipwell.revision (one, n) values (1, 0) on conflict (one) do nothing;
