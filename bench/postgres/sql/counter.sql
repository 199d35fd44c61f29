-- The floor of any design: a counter that only counts, with as much room in its
-- pages as dipwell's table has.
create schema counter;

create unlogged table counter.buckets (
    key text primary key,
    n bigint not null
) with (fillfactor = 70);
