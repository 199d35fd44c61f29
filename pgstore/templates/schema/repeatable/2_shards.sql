-- Keys of limits with shards. Such a key has one row of buckets, like any other. When
-- many connections take from it at the same time, its used units are spread over as many
-- rows of shards, each of which follows an equal part of the rule. Its row of buckets
-- then has the lows {0}, until the shards are gathered again. Only a call that has locked
-- the row of buckets spreads or gathers. Go twin: shards.go.

create function dipwell_internal.shard_used(r dipwell.versions, shards bigint, shard int, used bigint, ts bigint, t bigint) returns bigint language plpgsql stable as $$
begin
    r.add := r.add / shards + case when shard < r.add % shards then 1 else 0 end;
    return dipwell_internal.used_at(r, used, ts, t);
end $$;
comment on function dipwell_internal.shard_used is
    'The units used at t of one of the shards of a key. t is not before ts. Go twin: shardLeftSQL.';

create type dipwell_internal.gathered as (
    used bigint,
    ts   bigint
);
comment on type dipwell_internal.gathered is 'The sum of the shards of a key.';
comment on column dipwell_internal.gathered.used is 'Units used at ts.';
comment on column dipwell_internal.gathered.ts is 'The latest of their times, in µs.';

create function dipwell_internal.whole(lim int, of_key text, version int) returns dipwell_internal.gathered language plpgsql stable as $$
declare
    w dipwell_internal.gathered;
    r dipwell.versions;
    k bigint;
    n bigint := dipwell_internal.now_us();
begin
    select count(*), max(s.ts) into k, w.ts from dipwell.shards s where s.limit_id = lim and s.key = of_key;
    select v.* into r from dipwell.versions v where v.limit_id = lim and v.number = whole.version;
    r := dipwell_internal.spread(r, (select l.name from dipwell.limits l where l.id = lim), of_key);
    -- If the clock stepped back, a shard may have been taken from since, at a time before
    -- w.ts. What it had until w.ts without that must not come back to it.
    select sum(dipwell_internal.shard_used(r, k, s.shard, s.used, s.ts, greatest(s.ts, least(w.ts, n)))) into w.used
        from dipwell.shards s where s.limit_id = lim and s.key = of_key;
    w.used := coalesce(w.used, 0);
    w.ts := coalesce(w.ts, 0);
    return w;
end $$;
comment on function dipwell_internal.whole is
    'The sum of the shards of a key: the units used at the latest of their times. It is stable, so that it sees the same snapshot as the statement that calls it.';

create function dipwell_internal.gather(lim int, of_key text) returns void language plpgsql volatile as $$
declare
    w dipwell_internal.gathered;
begin
    perform from dipwell.shards s where s.limit_id = lim and s.key = of_key order by s.shard for update;
    select (dipwell_internal.whole(lim, of_key, b.version)).* into w from dipwell.buckets b where b.limit_id = lim and b.key = of_key;
    update dipwell.buckets b set used = w.used, ts = w.ts, lows = null where b.limit_id = lim and b.key = of_key;
    delete from dipwell.shards s where s.limit_id = lim and s.key = of_key;
end $$;
comment on function dipwell_internal.gather is
    'Makes one row again of the shards of a key. The key''s row of buckets is locked and has the lows {0}.';

create function dipwell_internal.lock_bucket(lim int, of_key text) returns boolean language plpgsql volatile as $$
declare
    list bigint[];
begin
    select b.lows into list from dipwell.buckets b where b.limit_id = lim and b.key = of_key for update;
    if not found then
        return false;
    elsif list = '{0}' then
        perform dipwell_internal.gather(lim, of_key);
    end if;
    return true;
end $$;
comment on function dipwell_internal.lock_bucket is
    'Locks the row of a key and gathers its shards. Returns false if there is no row.';

create function dipwell_internal.scatter(r dipwell.versions, of_key text, shards bigint, held bigint, t bigint) returns void language plpgsql volatile as $$
begin
    -- Rows without a row of the key are left over from a restored backup without buckets.
    delete from dipwell.shards s where s.limit_id = r.limit_id and s.key = of_key;
    insert into dipwell.shards (used, ts, limit_id, version, shard, key)
        select held / shards + case when i < held % shards then 1 else 0 end, t, r.limit_id, r.number, i, of_key from generate_series(0, shards::int - 1) i;
    update dipwell.buckets b set used = r.max_used, ts = t, lows = '{0}' where b.limit_id = r.limit_id and b.key = of_key;
end $$;
comment on function dipwell_internal.scatter is
    'Spreads what is used at t over the shards of a key. The row of the key is locked. Each shard must have room for its part.';

-- The planner inlines it. It reads in the order of the index, because a bitmap scan would
-- visit the index entries of old row versions again and again.
create function dipwell_internal.shards_at(lim int, of_key text, of_version int, n bigint, units bigint, every bigint, less bigint, more bigint, grid bigint, enough bigint,
    small bigint, large bigint, token bigint) returns table (shard int, used bigint, over bigint) language sql stable as $$
    select s.shard, o.used, o.used + units - small - case when s.shard < large then token else 0 end
    from dipwell.shards s
    cross join lateral (select dipwell_internal.plain_used(s.used, s.ts, n, every, less + case when s.shard < more then 1 else 0 end, grid, enough) as used) o
    where s.limit_id = lim and s.key = of_key and s.version = of_version
    order by s.shard $$;
comment on function dipwell_internal.shards_at is
    'The shards of a key: what each uses at n, and by how much units exceed the room that it has. At a tick less units come back to a shard, and one unit more to the first few. Each has room for small units, and the first few for one token more.';

-- In unlogged tables a call sleeps before it waits for a lock. A lock that others wait for
-- passes from one to the next, and the next holds it from then on, even if the processors
-- are busy with others for long. With many sessions all locks would then always be held by
-- sessions that do not run, and each call would wait. In logged tables the locks are held
-- for as long as commits take anyway, and whoever sleeps is late when one is free.
create function dipwell_internal.lock_shard(limit_name text, of_key text, cost bigint, first int, shards int) returns int language plpgsql volatile as $$
declare
    i      int := first;
    lock   bigint := hashtextextended(of_key, hashtext(limit_name)) + 1; -- of shard 0
    n      bigint;
    sleeps boolean := relpersistence = 'u' from pg_class where oid = 'dipwell.shards'::regclass;
begin
    for k in 1..case when sleeps then 8 else shards - 1 end loop
        i := (i + 1) % shards;
        if pg_try_advisory_xact_lock(lock + i) then
            return i;
        elsif sleeps and k % 2 = 0 then
            perform pg_sleep(0.0005 * (1 << k / 2)); -- 1 to 8 ms
        end if;
    end loop;
    -- A call that will be refused does not wait. Nor does one whose transaction has gathered
    -- the shards: whoever has their locks waits for it.
    n := dipwell_internal.now_us();
    if not exists (select from dipwell.limits l join dipwell.shards s on s.limit_id = l.id and s.version = l.version
            where l.name = limit_name and l.shards = lock_shard.shards and l.every = 1 and lock_shard.cost between 1 and l.cap / l.unit and s.key = of_key
                and {{fitsAfter "s.used" (ticksSince "s.ts" "n" 0 1) "(l.add / l.shards + case when s.shard < l.add % l.shards then 1 else 0 end)" unbounded "lock_shard.cost * l.unit" "(l.cap / l.unit / l.shards / 2 * l.unit)"}}) then
        return null;
    end if;
    perform pg_advisory_xact_lock(lock + first);
    return first;
end $$;
comment on function dipwell_internal.lock_shard is
    'Gets the advisory lock of a shard, whichever it finds free first, and returns the shard, from 0. That of shard first is taken. If none is free, in unlogged tables for 15 ms, it waits for that one, or returns null if no shard has enough for cost while half of its tokens stay.';

-- A call that takes from a shard first gets the shard's advisory lock. It then locks the
-- row without a wait, except for a call that gathers. An advisory lock wakes one of the
-- calls that wait for it; a row lock wakes all of them, and they then wait for the next
-- version of the row.
--
-- A call waits for such a lock only if it holds no other and has locked no row. A call that
-- has the lock of a shard without room sleeps and tries again, and is left to
-- dipwell_internal.decide after 0.7 s; and a call that gathers takes no such lock. So they
-- cannot deadlock.
--
-- Only a call with the advisory lock of a shard, or one that gathers, writes the shard's row.
-- So a statement that has the lock and finds the row full has not waited for another version
-- of the row, and has not locked it in vain.
--
-- A refusal is decided on one snapshot of all rows, without locks. So the locks of other
-- calls never cause a refusal.
create function dipwell_internal.take_shards(limit_name text, of_key text, cost bigint, scattered boolean, of_id int default null, of_version int default null, at bigint default null, vain boolean default false,
    out outcome int, out used bigint, out ts bigint, out n bigint, out spread boolean,
    out unit bigint, out every bigint, out add bigint, out cap bigint, out grid bigint, out shards int)
language plpgsql volatile set enable_bitmapscan = off as $$
declare
    l      record; -- the limit, and by how much the call is more than each shard has room for
    r      dipwell.versions;
    x      record;
    i      int;
    home   int; -- two shards, from 1
    other  int;
    waited boolean;
    lock   bigint; -- the advisory lock before that of the first shard
    held   bigint;
    contended boolean; -- whether others had the row
begin
    outcome := 0;
    for round in 1..16 loop
        n := coalesce(at, dipwell_internal.now_us());
        select y.id, y.version, y.shards, y.unit, y.every, y.add, y.cap, y.overridden, y.algorithm, p.*, s.* into l from dipwell.limits y
            cross join lateral (select cost * y.unit as units, 2 * y.shards * y.ticks as enough, y.add / y.shards as less, y.add % y.shards as more,
                y.cap / y.unit / y.shards * y.unit as small, y.cap / y.unit % y.shards as large, coalesce(take_shards.grid, y.grid) as grid offset 0) p
            cross join lateral (select sum(o.used)::bigint as used, min(o.over) as over, array_agg(o.over) as overs
                from dipwell_internal.shards_at(y.id, of_key, y.version, n, p.units, y.every, p.less, p.more, p.grid, p.enough, p.small, p.large, y.unit) o where scattered) s
            where y.name = limit_name and y.shards > 1 and y.every > 0 and case when of_version is null
                    then y.mode = 'enforce' and y.parent is null and y.parts is null and cost between 1 and y.cap / y.unit and octet_length(of_key) <= 512
                    else y.id = of_id and y.version = of_version end;
        if not found then
            return;
        elsif l.algorithm <> 'token_bucket' and grid is null then -- the origin may be the key's
            select o.origin - o.every * (9007199254740992 / o.every + 1) into grid from dipwell.versions v
                cross join lateral dipwell_internal.spread(v, limit_name, of_key) o where v.limit_id = l.id and v.number = l.version;
            continue;
        end if;
        unit := l.unit;
        every := l.every;
        add := l.add;
        cap := l.cap;
        grid := l.grid;
        if l.over <= 0 then
            lock := hashtextextended(of_key, hashtext(limit_name));
            home := pg_backend_pid() % l.shards + 1;
            other := n % l.shards + 1;
            i := case when l.overs[other] < l.overs[home] then other else home end;
            waited := false;
            if l.overs[i] > 0 or not pg_try_advisory_xact_lock(lock + i) then
                i := home + other - i;
                if l.overs[i] > 0 or not pg_try_advisory_xact_lock(lock + i) then
                    waited := true;
                    for x in select o.i from unnest(l.overs) with ordinality o (over, i) where o.over <= 0 order by o.over loop
                        if pg_try_advisory_xact_lock(lock + x.i) then
                            i := x.i;
                            waited := false;
                            exit;
                        end if;
                    end loop;
                    if waited and vain then
                        perform pg_sleep(0.001 * (1 << least(round - 1, 6)));
                        continue;
                    elsif waited then
                        if l.overs[i] > 0 then
                            i := array_position(l.overs, l.over);
                        end if;
                        perform pg_advisory_xact_lock(lock + i);
                        n := coalesce(at, dipwell_internal.now_us());
                    end if;
                end if;
            end if;
            i := i - 1;
            update dipwell.shards b
                set used = dipwell_internal.plain_used(b.used, b.ts, n, l.every, l.less + case when b.shard < l.more then 1 else 0 end, l.grid, l.enough) + l.units,
                    ts = {{later "n" "b.ts"}}
                where b.limit_id = l.id and b.key = of_key and b.shard = i and b.version = l.version
                    and dipwell_internal.plain_used(b.used, b.ts, n, l.every, l.less + case when b.shard < l.more then 1 else 0 end, l.grid, l.enough) + l.units
                        <= l.small + case when b.shard < l.large then l.unit else 0 end
                returning b.ts, l.used + l.units into ts, used;
            if found then
                if waited then -- others have taken meanwhile
                    select sum(o.used) into used from dipwell_internal.shards_at(l.id, of_key, l.version, n, l.units, l.every, l.less, l.more, l.grid, l.enough, l.small, l.large, l.unit) o;
                end if;
                outcome := 1;
                spread := true;
                if l.every = 1 and l.add <= 256 and l.overs[home] <= -(l.small * 3 / 4) then
                    shards := l.shards;
                end if;
                return;
            end if;
            vain := true;
            continue;
        end if;
        select b.used, b.ts, b.version, b.lows is null as plain, b.lows = '{0}' as scattered,
                case when b.lows = '{0}' then dipwell_internal.whole(l.id, of_key, b.version) end as whole into x
            from dipwell.buckets b where b.limit_id = l.id and b.key = of_key;
        n := coalesce(at, dipwell_internal.now_us());
        if not found then
            if l.overridden then
                return;
            end if;
            insert into dipwell.buckets (used, ts, limit_id, version, key) values (l.units, n, l.id, l.version, of_key) on conflict do nothing;
            if found then
                outcome := 1;
                used := l.units;
                ts := n;
                spread := false;
                return;
            end if;
            continue;
        end if;
        if x.version <> l.version or not x.plain and not x.scattered then
            return;
        end if;
        if x.scattered then
            x.used := (x.whole).used;
            x.ts := (x.whole).ts;
        end if;
        spread := x.scattered;
        ts := {{later "n" "x.ts"}};
        used := dipwell_internal.plain_used(x.used, x.ts, ts, l.every, l.add, l.grid, l.enough);
        if {{no (fits "used" "l.units" "l.cap")}} then
            outcome := 2;
            return;
        elsif spread and scattered then
            return; -- only all of them together have room
        end if;
        scattered := spread;
        continue when scattered;
        select v.* into r from dipwell.versions v where v.limit_id = l.id and v.number = l.version;
        begin
            select b.used, b.ts, b.version, b.lows is null as plain into x from dipwell.buckets b
                where b.limit_id = l.id and b.key = of_key for update skip locked;
            contended := not found;
            if contended then
                select b.used, b.ts, b.version, b.lows is null as plain into x from dipwell.buckets b
                    where b.limit_id = l.id and b.key = of_key for update;
            end if;
            n := coalesce(at, dipwell_internal.now_us());
            if x.version = l.version and x.plain then
                ts := {{later "n" "x.ts"}};
                held := dipwell_internal.plain_used(x.used, x.ts, ts, l.every, l.add, l.grid, l.enough) + l.units;
                if held <= l.cap then
                    used := held;
                    outcome := 1;
                    spread := contended and l.cap - held >= l.shards * l.units and (l.cap - held >= 4 * l.shards * l.units or l.cap - held >= l.cap / 2);
                    if spread then
                        perform dipwell_internal.scatter(r, of_key, l.shards, held, ts);
                    else
                        update dipwell.buckets b set used = held, ts = take_shards.ts where b.limit_id = l.id and b.key = of_key;
                    end if;
                    return;
                end if;
            end if;
            raise exception using errcode = 'DW001', message = 'a row that was locked in vain';
        exception when sqlstate 'DW001' then
            null;
        end;
    end loop;
end $$;
comment on function dipwell_internal.take_shards is
    'Takes from a key of a limit with shards. scattered tells whether to try the rows of shards first. outcome: 0 dipwell_internal.decide must decide, 1 taken, 2 refused. Also returns used and ts of the whole key, whether it has rows of shards, and the rule. of_id and of_version are those of the limit as known to a caller who has checked the arguments; if they are null, the function checks them. at replaces the clock, for tests. vain: the call may have the lock of a shard without room, or have locked a row. shards: the number of shards, if the home of the caller has three quarters of its tokens, so that dipwell.take may take from it without a comparison.';

-- Each call looks at other keys, so that all have their turn. It waits for no lock: a
-- transaction may have a shard for long, and the sweep has locked rows of other keys.
create function dipwell_internal.sweep_shards(max_rows bigint, n bigint) returns bigint language plpgsql volatile as $$
declare
    p     record;
    b     dipwell.buckets;
    swept bigint := 0;
begin
    for p in select s.limit_id, s.key, l.id is null as dropped from dipwell.shards s left join dipwell.limits l on l.id = s.limit_id
        where s.shard = 0 order by random() limit max_rows loop
        continue when not p.dropped and not (select dipwell_internal.is_full(p.limit_id, p.key, w.used, w.ts, x.version, n)
            from dipwell.buckets x cross join lateral dipwell_internal.whole(p.limit_id, p.key, x.version) w where x.limit_id = p.limit_id and x.key = p.key);
        select * into b from dipwell.buckets x where x.limit_id = p.limit_id and x.key = p.key for update skip locked;
        if b.lows is distinct from '{0}' then -- it is locked or gathered, or there is none
            delete from dipwell.shards s where s.ctid = any (array(
                select x.ctid from dipwell.shards x where x.limit_id = p.limit_id and x.key = p.key
                    and not exists (select from dipwell.buckets y where y.limit_id = p.limit_id and y.key = p.key) for update skip locked));
            swept := swept + case when found then 1 else 0 end;
            continue;
        end if;
        continue when exists (select from dipwell.shards s where s.limit_id = p.limit_id and s.key = p.key and s.shard <> all (array(
            select x.shard from dipwell.shards x where x.limit_id = p.limit_id and x.key = p.key for update skip locked)));
        perform dipwell_internal.gather(p.limit_id, p.key);
        delete from dipwell.buckets x where x.limit_id = p.limit_id and x.key = p.key
            and (p.dropped or dipwell_internal.is_full(x.limit_id, x.key, x.used, x.ts, x.version, n));
        swept := swept + case when found then 1 else 0 end;
    end loop;
    return swept;
end $$;
comment on function dipwell_internal.sweep_shards is
    'Deletes the rows of at most max_rows keys with shards that are full at n, whose limit was dropped, or that have no row of buckets, and returns their number. Skips keys of which a row is locked.';
