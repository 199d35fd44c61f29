
-- == Limits with shards

-- Each key of a limit with shards has several rows of buckets, which are like any other:
-- their rule is one row's part of the limit.

create function dipwell_internal.row_keys(shards bigint, key text) returns text[] language plpgsql immutable as $$
begin
    return case when shards > 1 then array(select row_keys.key || chr(1) || lpad(i::text, 2, '0') from generate_series(0, shards - 1) i) else array[row_keys.key] end;
end $$;

create function dipwell_internal.two_rows(shards bigint, key text) returns text[] language plpgsql volatile as $$
declare
    a bigint := trunc(random() * shards);
    b bigint := (a + 1 + trunc(random() * (shards - 1))::bigint) % shards;
begin
    return array[two_rows.key || chr(1) || lpad(a::text, 2, '0'), two_rows.key || chr(1) || lpad(b::text, 2, '0')];
end $$;

-- The key to which a row belongs; null if the row is of a version with another number of
-- shards.
create function dipwell_internal.key_of(shards bigint, row_key text) returns text language sql immutable set search_path = pg_catalog, pg_temp as $$
    select case when coalesce(shards, 1) < 2 then row_key when row_key ~ '\x01[0-9][0-9]$' and right(row_key, 2)::int < shards then left(row_key, -3) end
$$;

-- Whether rows of a limit have enough tokens for a cost, how many they have, and in how many
-- µs they will have enough.
create function dipwell_internal.look(lim int, keys text[], cost bigint) returns table (key text, fits boolean, never boolean, remaining bigint, retry bigint)
language plpgsql volatile as $$
declare
    k int := cardinality(keys);
begin
    return query select keys[d.ordinality], d.allowed and not d.shadow, d.never, d.remaining, d.retry
        from dipwell_internal.decide(array_fill(lim, array[k]), keys, array_fill(1, array[k]), array_fill(cost, array[k]), array_fill(null::bigint, array[k])) with ordinality d;
end $$;

-- Locks a row if it has enough tokens, and returns free. Otherwise the result is refused, or,
-- without waits, locked if another transaction has the row. A row that another transaction
-- has inserted is invisible until that ends, and an insert would wait for it. So whoever
-- inserts a row first takes an advisory lock.
create function dipwell_internal.lock_row(lim int, row_key text, cost bigint, waits boolean) returns text language plpgsql volatile as $$
begin
    loop
        if waits then
            perform from dipwell.buckets b where b.limit_id = lim and b.key = row_key for no key update;
        else
            perform from dipwell.buckets b where b.limit_id = lim and b.key = row_key for no key update skip locked;
        end if;
        exit when found or (waits or not exists (select from dipwell.buckets b where b.limit_id = lim and b.key = row_key))
            and pg_try_advisory_xact_lock(hashtextextended(row_key, lim));
        if not waits then
            return 'locked';
        end if;
        perform pg_advisory_xact_lock(hashtextextended(row_key, lim));
    end loop;
    if (select k.fits from dipwell_internal.look(lim, array[row_key], cost) k) then
        return 'free';
    end if;
    raise exception using errcode = 'triggered_action_exception'; -- releases the lock
exception when triggered_action_exception then
    return 'refused';
end $$;

-- Locks the rows of a call whose limits have shards. Without waits, the result is null if
-- one of them is locked.
create function dipwell_internal.lock_rows(limit_ids int[], keys text[], verbs int[], costs bigint[], waits boolean) returns int[] language plpgsql volatile as $$
declare
    x record;
begin
    for x in select q.id, q.key, case q.verb when 2 then 1 else q.cost end as cost from unnest(limit_ids, keys, verbs, costs) q (id, key, verb, cost)
            join dipwell.limits l on l.id = q.id where l.shards > 1 order by q.id, q.key collate "C" loop
        if (select k.fits from dipwell_internal.look(x.id, array[x.key], x.cost) k) and dipwell_internal.lock_row(x.id, x.key, x.cost, waits) = 'locked' then
            return null;
        end if;
    end loop;
    return limit_ids;
end $$;

-- A row of a key that has enough tokens for a cost, or the row that will have them first.
create function dipwell_internal.choose_row(lim int, keys text[], cost bigint, locks boolean) returns text language plpgsql volatile as $$
declare
    x       record;
    state   text;
    locked  text[] := '{}';
    soonest text; -- will have enough first
begin
    keys := array(select k from unnest(keys) k order by random());
    for x in select k.key, k.fits from dipwell_internal.look(lim, keys, cost) k
            order by k.fits desc, case when k.fits then k.key = any (keys[:2]) end desc, case when k.fits then k.remaining end desc, k.never, k.retry loop
        if not x.fits then
            soonest := x.key;
            exit;
        end if;
        state := case when locks then dipwell_internal.lock_row(lim, x.key, cost, false) else 'free' end;
        if state = 'free' then
            return x.key;
        elsif state = 'locked' then
            locked := locked || x.key;
        end if;
    end loop;
    for x in select l.key from unnest(locked) l (key) order by random() loop
        if dipwell_internal.lock_row(lim, x.key, cost, true) = 'free' then
            return x.key;
        end if;
    end loop;
    return coalesce(soonest, keys[1]);
end $$;

create function dipwell_internal.choose_rows(c dipwell_internal.call, verb int) returns dipwell_internal.call language plpgsql volatile as $$
declare
    keys text[] := c.keys;
    x    record;
begin
    for x in select i.i, l.id, l.shards from generate_subscripts(c.ids, 1) i (i) join dipwell.limits l on l.id = c.ids[i.i]
            where l.shards > 1 order by l.id, c.keys[i.i] collate "C" loop
        keys[x.i] := dipwell_internal.choose_row(x.id, dipwell_internal.row_keys(x.shards, keys[x.i]), case verb when 2 then 1 else c.costs[x.i] end, verb <> 1);
    end loop;
    c.keys := keys;
    return c;
end $$;
