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
    primary key (limit_id, key, mark, number)
) without rowid;

create index if not exists records_id on records (id) where id is not null;
