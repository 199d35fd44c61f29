-- Rival (a): a column has the whole tokens of a key; each second one statement
-- adds tokens to every row that is not full, which a partial index finds.
create schema cron;

create unlogged table cron.buckets (
    key text primary key,
    tokens bigint not null
) with (fillfactor = 70);

create index on cron.buckets (tokens) where tokens < 1000000000;
