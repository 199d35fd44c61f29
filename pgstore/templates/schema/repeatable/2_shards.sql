-- Keys of limits with shards. A key has one row of buckets, as any other. When many
-- take from it at the same time, what is used is spread over as many rows of shards,
-- each with an equal part of the rule, and the row of buckets has the lows {0} until
-- they are gathered again. Only whoever has locked the row of buckets spreads or
-- gathers. Go twin: shards.go.

create function dipwell_internal.shard_used(r dipwell.versions, shards bigint, shard int, used bigint, ts bigint, t bigint) returns bigint language plpgsql stable as $$
begin
    r.add := r.add / shards + case when shard < r.add % shards then 1 else 0 end;
    return dipwell_internal.used_at(r, used, ts, t);
end $$;
comment on function dipwell_internal.shard_used is
    'The units used at t, which is not before ts, of one of the shards of a key. Go twin: shardRule.';

create type dipwell_internal.gathered as (
    used bigint,
    ts   bigint
);
comment on type dipwell_internal.gathered is 'What the shards of a key are together.';
comment on column dipwell_internal.gathered.used is 'Units used at ts.';
comment on column dipwell_internal.gathered.ts is 'The latest of their times, in µs.';

create function dipwell_internal.whole(lim int, of_key text, version int) returns dipwell_internal.gathered language plpgsql stable as $$
declare
    w dipwell_internal.gathered;
    r dipwell.versions;
    k bigint;
begin
    select count(*), max(s.ts) into k, w.ts from dipwell.shards s where s.limit_id = lim and s.key = of_key;
    select v.* into r from dipwell.versions v where v.limit_id = lim and v.number = whole.version;
    r := dipwell_internal.spread(r, (select l.name from dipwell.limits l where l.id = lim), of_key);
    select sum(dipwell_internal.shard_used(r, k, s.shard, s.used, s.ts, w.ts)) into w.used
        from dipwell.shards s where s.limit_id = lim and s.key = of_key;
    w.used := coalesce(w.used, 0);
    w.ts := coalesce(w.ts, 0);
    return w;
end $$;
comment on function dipwell_internal.whole is
    'What the shards of a key are together: the units used at the latest of their times. Stable, so that it sees what the statement sees that calls it. Go twin: gathered.';

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
    'Makes the shards of a key, whose row of buckets is locked and has the lows {0}, one row again.';

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
    'Locks the row of a key, and gathers its shards; false if there is no row.';

create function dipwell_internal.scatter(r dipwell.versions, of_key text, shards bigint, held bigint, t bigint) returns void language plpgsql volatile as $$
begin
    insert into dipwell.shards (used, ts, limit_id, version, shard, key)
        select held / shards + case when i < held % shards then 1 else 0 end, t, r.limit_id, r.number, i, of_key from generate_series(0, shards::int - 1) i;
    update dipwell.buckets b set used = r.max_used, ts = t, lows = '{0}' where b.limit_id = r.limit_id and b.key = of_key;
end $$;
comment on function dipwell_internal.scatter is
    'Spreads what is used at t over the shards of a key, whose row is locked. Each of them must have room for its part.';

-- A statement that finds a row changed, once it is locked, keeps the lock, and who
-- keeps it while waiting for others could be in a deadlock. So each attempt is a
-- block of its own, which an exception undoes.
--
-- A refusal is decided on one snapshot of all rows, without locks. A lock that is
-- skipped refuses nobody.
create function dipwell_internal.take_shards(lim int, of_key text, cost bigint, version int, shards bigint, scattered boolean, at bigint default null,
    out outcome int, out used bigint, out ts bigint, out n bigint, out spread boolean, out grid bigint)
language plpgsql volatile as $$
declare
    r      dipwell.versions;
    x      record;
    i      int;
    held   bigint;
    units  bigint;
    enough bigint; -- ticks after which any shard is full
    less   bigint; -- that come back to a shard at a tick, one more to the first of them
    more   bigint;
    small  bigint; -- units that a shard may use, one token more for the first of them
    large  bigint;
    home   int := pg_backend_pid() % shards;
    other  int := floor(random() * shards);
    tried  boolean; -- whether there is one that nobody else has locked
    contended boolean; -- whether others had the row
begin
    outcome := 0;
    select v.* into r from dipwell.versions v where v.limit_id = lim and v.number = take_shards.version;
    r := dipwell_internal.spread(r, (select l.name from dipwell.limits l where l.id = lim and r.spread), of_key);
    units := cost * r.unit;
    grid := r.origin - r.every * (9007199254740992 / r.every + 1);
    enough := 2 * shards * ((r.max_used + r.add - 1) / r.add);
    less := r.add / shards;
    more := r.add % shards;
    small := r.burst / shards * r.unit;
    large := r.burst % shards;
    spread := true;
    for round in 1..16 loop
        if scattered then
            n := coalesce(at, dipwell_internal.now_us());
            begin
                update dipwell.shards b
                    set used = dipwell_internal.plain_used(b.used, b.ts, n, r.every, less + case when b.shard < more then 1 else 0 end, grid, enough) + units,
                        ts = {{later "n" "b.ts"}}
                    where b.limit_id = lim and b.key = of_key and b.shard = (select s.shard from dipwell.shards s
                        cross join lateral (select dipwell_internal.plain_used(s.used, s.ts, n, r.every, less + case when s.shard < more then 1 else 0 end, grid, enough) + units
                            - small - case when s.shard < large then r.unit else 0 end as over) o
                        where s.limit_id = lim and s.key = of_key and s.version = take_shards.version and o.over <= 0
                        order by s.shard in (home, other) desc, o.over limit 1 for update of s skip locked)
                    returning b.ts, b.used + (select coalesce(sum(dipwell_internal.plain_used(s.used, s.ts, {{later "n" "s.ts"}}, r.every, less + case when s.shard < more then 1 else 0 end, grid, enough)), 0)
                        from dipwell.shards s where s.limit_id = lim and s.key = of_key and s.shard <> b.shard) into ts, used;
                if found then
                    outcome := 1;
                    return;
                end if;
                raise exception using errcode = 'DW001', message = 'rows that were locked in vain';
            exception when sqlstate 'DW001' then
                null;
            end;
        end if;
        select b.used, b.ts, b.version, b.lows is null as plain, b.lows = '{0}' as scattered,
                case when b.lows = '{0}' then dipwell_internal.whole(lim, of_key, b.version) end as whole into x
            from dipwell.buckets b where b.limit_id = lim and b.key = of_key;
        n := coalesce(at, dipwell_internal.now_us());
        if not found then
            if (select l.overridden from dipwell.limits l where l.id = lim) then
                return;
            end if;
            insert into dipwell.buckets (used, ts, limit_id, version, key) values (units, n, lim, take_shards.version, of_key) on conflict do nothing;
            if found then
                outcome := 1;
                used := units;
                ts := n;
                spread := false;
                return;
            end if;
            continue;
        end if;
        if x.version <> take_shards.version or not x.plain and not x.scattered then
            return;
        end if;
        if x.scattered then
            x.used := (x.whole).used;
            x.ts := (x.whole).ts;
        end if;
        ts := {{later "n" "x.ts"}};
        used := dipwell_internal.used_at(r, x.used, x.ts, ts);
        tried := scattered;
        scattered := x.scattered;
        if {{no (fits "used" "units" "r.cap")}} then
            outcome := 2;
            spread := scattered;
            return;
        end if;
        continue when scattered and not tried;
        begin
            if x.plain then
                select b.used, b.ts, b.version, b.lows is null as plain into x from dipwell.buckets b
                    where b.limit_id = lim and b.key = of_key for update skip locked;
                contended := not found;
                if contended then
                    select b.used, b.ts, b.version, b.lows is null as plain into x from dipwell.buckets b
                        where b.limit_id = lim and b.key = of_key for update;
                end if;
                n := coalesce(at, dipwell_internal.now_us());
                if x.version = take_shards.version and x.plain then
                    ts := {{later "n" "x.ts"}};
                    held := dipwell_internal.used_at(r, x.used, x.ts, ts) + units;
                    if held <= r.cap then
                        used := held;
                        outcome := 1;
                        spread := contended and r.cap - held >= shards * units and (r.cap - held >= 4 * shards * units or r.cap - held >= r.cap / 2);
                        if spread then
                            perform dipwell_internal.scatter(r, of_key, shards, held, ts);
                        else
                            update dipwell.buckets b set used = held, ts = take_shards.ts where b.limit_id = lim and b.key = of_key;
                        end if;
                        return;
                    end if;
                end if;
            else
                -- Waits for one that had room: those that take from the others at the
                -- same time hold one lock each, and so does this.
                select s.shard into i from dipwell.shards s
                    cross join lateral (select dipwell_internal.shard_used(r, shards, s.shard, s.used, s.ts, {{later "n" "s.ts"}}) + units
                        - small - case when s.shard < large then r.unit else 0 end as over) o
                    where s.limit_id = lim and s.key = of_key and s.version = take_shards.version and o.over <= 0
                    order by s.shard = home desc, o.over limit 1;
                if not found then
                    return; -- only all of them together have room
                end if;
                select s.used, s.ts, s.version, s.shard into x from dipwell.shards s where s.limit_id = lim and s.key = of_key and s.shard = i for update;
                n := coalesce(at, dipwell_internal.now_us());
                if x.version = take_shards.version then
                    ts := {{later "n" "x.ts"}};
                    held := dipwell_internal.shard_used(r, shards, i, x.used, x.ts, ts) + units;
                    if held <= small + (case when i < large then r.unit else 0 end) then
                        update dipwell.shards s set used = held, ts = take_shards.ts where s.limit_id = lim and s.key = of_key and s.shard = i
                            returning held + (select coalesce(sum(dipwell_internal.shard_used(r, shards, o.shard, o.used, o.ts, {{later "n" "o.ts"}})), 0)
                                from dipwell.shards o where o.limit_id = lim and o.key = of_key and o.shard <> i) into used;
                        outcome := 1;
                        return;
                    end if;
                end if;
            end if;
            raise exception using errcode = 'DW001', message = 'rows that were locked in vain';
        exception when sqlstate 'DW001' then
            null;
        end;
    end loop;
end $$;
comment on function dipwell_internal.take_shards is
    'Takes from a key of a limit with shards, of which scattered tells whether its rows of shards are tried first. outcome: 0 dipwell_internal.decide must decide, 1 taken, 2 refused; used and ts of the whole key; whether it has rows of shards. at replaces the clock, for tests.';

create function dipwell_internal.sweep_shards(max_rows bigint, n bigint) returns bigint language plpgsql volatile as $$
declare
    p     record;
    b     dipwell.buckets;
    swept bigint := 0;
begin
    for p in select s.limit_id, s.key, l.id is null as dropped from dipwell.shards s left join dipwell.limits l on l.id = s.limit_id
        where s.shard = 0 limit max_rows loop
        continue when not p.dropped and not (select dipwell_internal.is_full(p.limit_id, p.key, w.used, w.ts, x.version, n)
            from dipwell.buckets x cross join lateral dipwell_internal.whole(p.limit_id, p.key, x.version) w where x.limit_id = p.limit_id and x.key = p.key);
        select * into b from dipwell.buckets x where x.limit_id = p.limit_id and x.key = p.key for update skip locked;
        continue when b.lows is distinct from '{0}';
        perform dipwell_internal.gather(p.limit_id, p.key);
        delete from dipwell.buckets x where x.limit_id = p.limit_id and x.key = p.key
            and (p.dropped or dipwell_internal.is_full(x.limit_id, x.key, x.used, x.ts, x.version, n));
        swept := swept + case when found then 1 else 0 end;
    end loop;
    return swept;
end $$;
comment on function dipwell_internal.sweep_shards is
    'Deletes at most max_rows keys with shards that are full at n, or of limits that were dropped, and returns how many. Skips keys whose row is locked.';
