-- The file of a filestore. `sqlite3 FILE 'select * from status'` shows it.
-- Times are µs since the Unix epoch, on the store's clock.
create table limits (
    id         integer primary key autoincrement, -- never used again: rows of a limit that is gone stay void
    name       text not null unique,
    definition text not null                      -- JSON: settings as in the configuration, owner, and versions, the present one and those before
);

-- A row names the version of its limit under which it was last stepped.
create view versions as
select id as limit_id, definition ->> '$.present.number' as number, definition ->> '$.present.unit' as unit, definition ->> '$.present.burst' as burst from limits
union all
select l.id, past.value ->> 'number', past.value ->> 'unit', past.value ->> 'burst' from limits l, json_each(l.definition, '$.past') past;

-- A missing row is a full bucket. The shared bucket's key is empty.
create table buckets (
    limit_id integer not null,
    key      text not null,
    used     integer not null, -- units, at ts
    ts       integer not null,
    version  integer not null,
    lows     text,             -- of a row with records, as JSON: how much of what they took is still there
    primary key (limit_id, key)
) without rowid;

-- A record: what one call took of one row and may still give back.
create table records (
    limit_id integer not null,
    key      text not null,
    mark     integer not null,
    number   integer not null,
    units    integer not null,
    unit     integer not null, -- of the units in a token
    slack    integer not null, -- -1: it does not wait
    due      integer not null,
    ends     integer not null,
    rest     integer not null, -- 1: it was cancelled, and units are what is withheld
    id       text,             -- of the reservation that can be cancelled; null: none can
    hold     text not null,    -- id of the hold that it is of; '': a reservation's
    expires  integer not null, -- when that hold expires
    parts    integer not null default 0, -- records of the reservation id; if any is gone it cannot be cancelled
    primary key (limit_id, key, mark, number)
) without rowid;

-- An override, which decides the calls of a key until its end.
create table overrides (
    limit_id integer not null,
    key      text not null,
    override text not null, -- JSON; rows that it decides have the version id - 2147483648
    primary key (limit_id, key)
) without rowid;

-- Holds, as JSON. The records of holds are with those of the rows.
create table holds (
    id      text primary key,
    forget  integer not null, -- when the row may be deleted
    hold    text not null
) without rowid;

create index records_id on records (id) where id is not null;

-- What people have changed, the last 10,000 entries.
create table audit (
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
create table top_hours (
    id       text primary key, -- as in audit
    at       text not null,    -- UTC
    who      text not null,    -- the process
    "action" text not null,    -- top
    "limit"  text not null,    -- ''
    key      text not null,    -- ''
    what     text not null,    -- JSON
    note     text not null     -- ''
) without rowid;

-- What each key of a limit with usage was answered in each hour of the last 31 days.
create table usage (
    limit_id integer not null,
    key      text not null,    -- '': the shared bucket, or the keys that a service had no room for
    hour     integer not null, -- when it began
    allowed  integer not null, -- calls
    refused  integer not null, -- calls
    tokens   integer not null,
    primary key (limit_id, key, hour)
) without rowid;

-- The store's clock when it was last written; the store never goes back behind it.
create table clock (now integer not null);
insert into clock values (0);

create view status as
select l.name as "limit", b.key, b.used * 1.0 / v.unit as used_tokens, v.burst, b.version,
       datetime(b.ts / 1000000, 'unixepoch') as at
from buckets b join limits l on l.id = b.limit_id left join versions v on v.limit_id = b.limit_id and v.number = b.version;
