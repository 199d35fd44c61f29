-- Rival (b): a function that first returns the whole tokens of the time
-- passed, then takes one, and inserts the row if there is none. Callers run it
-- under SERIALIZABLE and try again when the server asks them to.
create schema proc;

create unlogged table proc.buckets (
    key text primary key,
    tokens bigint not null,
    refilled timestamptz not null
) with (fillfactor = 70);

create function proc.take(bucket text, rate bigint, burst bigint) returns boolean
language plpgsql as $$
declare
    left_over bigint;
begin
    update proc.buckets as b
    set tokens = greatest(-1, least(burst, b.tokens + floor(extract(epoch from now() - b.refilled) * rate)::bigint) - 1),
        refilled = now()
    where b.key = bucket
    returning b.tokens into left_over;

    if not found then
        insert into proc.buckets (key, tokens, refilled)
        values (bucket, burst - 1, now())
        returning tokens into left_over;
    end if;

    return left_over >= 0;
end
$$;
