-- A published fixed window: one row for each key and window, counted up.
create schema windowed;

create unlogged table windowed.counters (
    key text not null,
    since timestamptz not null,
    n bigint not null,
    primary key (key, since)
) with (fillfactor = 70);
