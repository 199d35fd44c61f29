-- What Cancel needs. A program that does not know these tables opens the file as
-- before, and what it writes voids the lows of the rows that it changes.

-- How much of what the records of a row took is still there to be given back.
-- They count while the row is just as it was when they were written.
create table if not exists lows (
    limit_id integer not null,
    key      text not null,
    used     integer not null, -- the row's
    ts       integer not null,
    version  integer not null,
    mark     integer not null, -- of the list, as its records have it
    next     integer not null, -- number of the next record
    entries  text not null,    -- [[number, used], ...], rising
    primary key (limit_id, key)
) without rowid;

-- What one call took of one row and may still give back.
create table if not exists records (
    limit_id integer not null,
    key      text not null,
    mark     integer not null,
    number   integer not null,
    units    integer not null,
    slack    integer not null, -- -1: it does not wait
    version  integer not null,
    due      integer not null,
    ends     integer not null,
    rest     integer not null, -- 1: it was cancelled, and units are what is withheld
    id       text,             -- of the reservation that can be cancelled; null: none can
    hold     text not null default '',   -- id of the hold that it is of; '': a reservation's
    expires  integer not null default 0, -- when that hold expires
    parts    integer not null default 0, -- records of the reservation id; if any is gone it cannot be cancelled
    primary key (limit_id, key, mark, number)
) without rowid;

-- What decides the calls of a key until a time.
create table if not exists overrides (
    limit_id integer not null,
    key      text not null,
    id       integer not null, -- rows that it decides have the version id - 2147483648
    version  integer not null, -- of the limit
    plan     text not null,    -- or rate, per and burst, of which '' or 0 is the limit's
    rate     integer not null,
    per      text not null,
    burst    integer not null, -- -1: 0
    until    integer not null, -- 0: it has no end
    note     text not null,
    primary key (limit_id, key)
) without rowid;

-- Holds, as JSON. Their records are those of the rows.
create table if not exists holds (
    id      text primary key,
    forget  integer not null, -- when the row may be deleted
    hold    text not null
) without rowid;

create index if not exists records_id on records (id) where id is not null;

-- What people have changed, the last 10,000 entries.
create table if not exists audit (
    id       text primary key, -- 14 hexadecimal digits of the time, and 8 more
    at       text not null,    -- UTC
    who      text not null,
    "action" text not null,
    "limit"  text not null,
    key      text not null,    -- '': the shared bucket, or the limit itself
    what     text not null,
    note     text not null
) without rowid;

-- The busiest keys of each hour, by process, for a week.
create table if not exists top_hours (
    id       text primary key, -- as in audit
    at       text not null,    -- UTC
    who      text not null,    -- the process
    "action" text not null,    -- top
    "limit"  text not null,    -- ''
    key      text not null,    -- ''
    what     text not null,    -- JSON
    note     text not null     -- ''
) without rowid;
