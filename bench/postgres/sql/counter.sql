-- The floor of any design: a counter that only counts.
create schema counter;

create unlogged table counter.buckets (
    key text primary key,
    n bigint not null
);
