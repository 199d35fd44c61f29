-- Rival (c): one transaction of five statements; the caller computes between
-- the third and the fourth.
create schema tx;

create unlogged table tx.buckets (
    key text primary key,
    tokens float8 not null,
    refilled_us bigint not null
) with (fillfactor = 70);
