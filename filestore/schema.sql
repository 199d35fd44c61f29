-- The file of a filestore. `sqlite3 FILE 'select * from status'` shows it.
-- Times are µs since the Unix epoch, on the store's clock.
create table limits (
    id         integer primary key autoincrement, -- never used again: rows of a limit that is gone stay void
    name       text not null unique,
    definition text not null,                     -- settings as a JSON object, spelled as in the configuration
    owner      text not null,
    version    integer not null                   -- the present one
);

-- A row names the version of its limit that it was last stepped under.
create table versions (
    limit_id   integer not null,
    number     integer not null,
    since      integer not null,
    policy     text not null,
    unit       integer not null, -- units in a token
    every      integer not null, -- µs between ticks; 0: a calendar's
    "add"      integer not null, -- units given back at a tick
    cap        integer not null, -- units
    origin     integer not null,
    burst      integer not null, -- tokens
    debt       integer not null, -- units
    most       integer not null, -- tokens
    max_charge integer not null, -- tokens
    max_used   integer not null, -- units
    leaky      integer not null,
    spread     integer not null,
    per        text not null,
    start      text not null,
    settings   text not null default '', -- of the limit, as limits.definition has them; '': not known
    primary key (limit_id, number)
) without rowid;

-- A missing row is a full bucket. The shared bucket's key is empty.
create table buckets (
    limit_id integer not null,
    key      text not null,
    used     integer not null, -- units, at ts
    ts       integer not null,
    version  integer not null,
    primary key (limit_id, key)
) without rowid;

-- Reservations that were not yet due.
create table reservations (
    id  text primary key,
    due integer not null
) without rowid;

create table reserved (
    id       text not null,
    limit_id integer not null,
    key      text not null,
    units    integer not null,
    version  integer not null,
    primary key (id, limit_id, key)
) without rowid;

-- The store's clock when it was last written; it never runs behind.
create table clock (now integer not null);
insert into clock values (0);

create view status as
select l.name as "limit", b.key, b.used * 1.0 / v.unit as used_tokens, v.burst, b.version,
       datetime(b.ts / 1000000, 'unixepoch') as at
from buckets b join limits l on l.id = b.limit_id left join versions v on v.limit_id = b.limit_id and v.number = b.version;
