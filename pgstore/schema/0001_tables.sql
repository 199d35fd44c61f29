-- == Tables: limits, their versions, and the buckets

create table dipwell.limits (
    id             int generated always as identity primary key,
    name           text collate "C" not null unique,
    -- as defined; null is the default
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
    -- the present version, and what take needs of its rule
    version        int not null,
    unit           bigint not null,
    every          bigint not null,
    add            bigint not null,
    cap            bigint not null,
    grid           bigint not null,
    ticks          bigint not null,
    plain          boolean not null,
    spread         boolean not null,
    shared         boolean not null,
    -- more of what was defined; null is the default
    plans          text,
    parent         text,
    parts          bigint,
    ttl_us         bigint,
    on_expire      text,
    overridden     boolean,
    lease_us       bigint,
    shards         bigint,
    adaptive       text,
    block_us       bigint
);

create table dipwell.versions (
    limit_id   int not null references dipwell.limits on delete cascade,
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
    months     bigint not null,
    days       bigint not null,
    clock      bigint not null,
    zone       text not null,
    per        text not null,
    start      text,
    settings   text not null,
    primary key (limit_id, number)
);

-- No column that changes is indexed, and pages keep free room, so updates stay
-- within their page and do not touch the index.
create /*unlogged*/ table dipwell.buckets (
    used     bigint not null,
    ts       bigint not null,
    limit_id int not null,
    version  int not null,
    key      text collate "C" not null,
    lows     bigint[],
    low      bigint,
    due      bigint,
    primary key (limit_id, key)
) with (fillfactor = 70, vacuum_truncate = false, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

create /*unlogged*/ table dipwell.reservations (
    id       uuid not null,
    limit_id int not null,
    key      text collate "C" not null,
    units    bigint not null,
    unit     bigint not null,
    due      bigint not null,
    number   bigint not null,
    mark     bigint not null,
    slack    bigint,
    rest     boolean not null,
    part_due bigint not null,
    parts    int not null,
    primary key (id, limit_id, key)
);
create index on dipwell.reservations (limit_id, key);
create index on dipwell.reservations (due);

-- Each change of a limit adds a row here, and so does not wait for another change.
create table dipwell.revision (
    id bigint generated always as identity primary key,
    n  bigint not null
);

create table dipwell.sweep_state (
    page   bigint not null,
    began  bigint not null,
    passed bigint not null,
    took   bigint not null,
    swept  bigint not null,
    one    int primary key default 1 check (one = 1)
);
insert into dipwell.sweep_state values (0, 0, 0, 0, 0);

create table dipwell.plans (
    limit_id   int not null,
    number     int not null,
    version    int not null,
    name       text collate "C" not null,
    mode       text,
    callable   text not null,
    rule       dipwell.versions not null,
    primary key (limit_id, number),
    unique (limit_id, name, version),
    foreign key (limit_id, version) references dipwell.versions on delete cascade
);

-- This table is logged, even if buckets is not.
create table dipwell.key_overrides (
    limit_id   int not null references dipwell.limits on delete cascade,
    key        text collate "C" not null,
    plan       text,
    rate       bigint,
    per        text,
    burst      bigint,
    start      text,
    until      bigint,
    note       text,
    id         int not null,
    version    int not null,
    mode       text,
    rule       dipwell.versions not null,
    under      jsonb,
    primary key (limit_id, key)
) with (vacuum_truncate = false);
create index on dipwell.key_overrides (until) where until is not null;

create /*unlogged*/ table dipwell.hold_parts (
    expires  bigint not null,
    due      bigint not null,
    ttl      bigint not null,
    units    bigint not null,
    unit     bigint not null,
    tokens   bigint not null,
    number   bigint not null,
    mark     bigint not null,
    limit_id int not null,
    part     int not null,
    parts    int not null,
    takes    int not null,
    live     boolean not null,
    free     boolean not null,
    keep     boolean not null,
    reset    boolean not null,
    settled  boolean not null,
    id       text collate "C" not null,
    key      text collate "C" not null,
    plan     text collate "C",
    call     text collate "C",
    cost     bigint,
    costs    bigint[],
    dropped  text collate "C",
    till     bigint not null,
    primary key (id, part)
) with (vacuum_truncate = false, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
-- The index has till, which equals due while the row is live, and not due: a plan made
-- while the table was small would look for due in the index by due alone.
create index on dipwell.hold_parts (limit_id, key, till) where live;
create index on dipwell.hold_parts (limit_id, key, number) where free and not settled;
create index on dipwell.hold_parts (due);

create table dipwell.audit (
    id         text collate "C" primary key,
    at         timestamptz not null,
    who        text not null,
    action     text not null,
    limit_name text not null,
    key        text not null,
    what       text not null,
    note       text not null,
    role       text not null default session_user
);

-- A service writes rows of its own, so that it never waits for the transaction of a program
-- that counts in SQL.
create table dipwell.usage (
    limit_id int not null references dipwell.limits on delete cascade,
    key      text collate "C" not null,
    hour     timestamptz not null,
    by_sql   boolean not null,
    allowed  bigint not null,
    refused  bigint not null,
    tokens   bigint not null,
    primary key (limit_id, key, hour, by_sql)
);
create index on dipwell.usage (hour);

create table dipwell.top_hours (
    id        text collate "C" primary key,
    at        timestamptz not null,
    process   text not null,
    of_minute boolean not null,
    report    jsonb not null
);
