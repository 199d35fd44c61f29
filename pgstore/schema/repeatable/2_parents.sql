
-- == Limits with parents

-- The limits and keys of a call: first the named ones, and then their parents. takes has a
-- bit for each take to which the entry belongs, own the entry of each take.
create type dipwell_internal.call as (
    ids    int[],
    keys   text[],
    costs  bigint[],
    plans  text[],
    floors bigint[],
    takes  int[],
    own    int[],
    named  int
);

create function dipwell.key(variadic parts text[]) returns text language sql immutable as
$$ select case when bool_or(coalesce(p, '') = '') then '' else string_agg(replace(replace(p, '%', '%25'), '/', '%2F'), '/' order by i) end
    from unnest(parts) with ordinality u (p, i) $$;
comment on function dipwell.key is
    'The key of a limit that has a parent or is one: the parts, joined by /. Inside a part % is written as %25 and / as %2F. If a part is empty or null, so is the key, which no limit accepts.';

create function dipwell_internal.parent_key(key text) returns text language sql immutable as
$$ select case when key ~ '/' then regexp_replace(key, '/[^/]*$', '') else '' end $$;

create function dipwell_internal.check_path(limit_name text, key text, parts int, field text) returns void language plpgsql stable as $$
declare
    path   text[] := string_to_array(key, '/');
    reason text := field || ': ' || case
        when array_position(path, '') is not null then format('part %s of "%s" is empty', array_position(path, ''), key)
        when cardinality(path) <> parts then format('has %s; those of limit %s have %s, separated by ''/'' (a ''/'' inside a part is written %%2F)',
            case cardinality(path) when 1 then '1 part' else cardinality(path) || ' parts' end, limit_name, parts) end;
begin
    perform dipwell_internal.wrong(reason);
end $$;

-- Returns the key of a bucket; an error if the limit cannot have it.
create function dipwell_internal.check_key(lim int, of_key text, field text default 'key') returns text language plpgsql stable as $$
declare
    l      dipwell.limits;
    key    text;
    levels int := 0;
begin
    select * into l from dipwell.limits x where x.id = lim;
    key := dipwell_internal.check_key(l, of_key, field);
    while l.parent is not null and levels < 4 loop
        select * into l from dipwell.limits x where x.name = l.parent;
        levels := levels + 1;
    end loop;
    if levels > 0 or l.parts is not null and not l.shared then
        perform dipwell_internal.check_path((select x.name from dipwell.limits x where x.id = lim), key, levels + dipwell_internal.key_parts(l), field);
    end if;
    return key;
end $$;

-- How many parts the keys of a limit without a parent have.
create function dipwell_internal.key_parts(l dipwell.limits) returns int language sql immutable as
$$ select case when l.shared then 0 else greatest(l.parts, 1) end $$;

-- The limits and keys of a call, with the parents of the limits; an error if an argument is
-- wrong. alone is set if the call names one limit, so that errors name its field without an
-- index.
create function dipwell_internal.call_of(verb int, limit_names text[], of_keys text[], of_costs bigint[], of_plans text[], of_floors bigint[],
    alone boolean default false, ttl bigint default null) returns dipwell_internal.call language plpgsql stable as $$
declare
    c      dipwell_internal.call;
    k      int := cardinality(limit_names);
    fields text[] := '{limit_name,key,cost,floor,plan}';
    l      dipwell.limits;
    key    text;
    above  text;
    levels int;
    plan   text;
    i      int;
    j      int;
    -- An entry for each take, and then one for each of their parents.
    ids    int[] := '{}';
    keys   text[] := '{}';
    at     int[] := '{}'; -- index of the take
    up_ids  int[] := '{}';
    up_keys text[] := '{}';
    up_at   int[] := '{}';
    -- For each entry of c.
    names  text[] := '{}';
    costs  bigint[] := '{}';
    floors bigint[] := '{}';
    takes  int[] := '{}';
    own    int[] := '{}';
begin
    for i in 1..k loop
        if not alone then
            fields := array[format('limit_names[%s]', i), format('keys[%s]', i), format('costs[%s]', i), format('floors[%s]', i), format('plans[%s]', i)];
        end if;
        perform dipwell_internal.check_cost(of_costs[i], fields[3]);
        perform dipwell_internal.check_cost(coalesce(of_floors[i], 0), fields[4]);
        select * into l from dipwell.limits x where x.name = limit_names[i];
        if not found then
            perform dipwell_internal.limit_id(limit_names[i], fields[1]);
        end if;
        key := dipwell_internal.check_key(l, of_keys[i], fields[2]);
        if of_floors[i] > 0 then
            perform dipwell_internal.wrong(format('%s: limit %s ', fields[4], l.name) || case when l.algorithm = 'leaky_bucket' then 'is a leaky bucket, which has none'
                when l.algorithm = 'sliding_window' then 'is a sliding window, which has none' when l.shards > 1 then 'has shards, so that there is none' end);
        end if;
        perform dipwell_internal.check_verb(l, verb, ttl, fields[1]);
        if of_plans[i] is not null then -- here, because decide does not know which argument it is
            perform dipwell_internal.check_callable(l, of_plans[i], fields[5]);
        end if;
        ids := ids || l.id;
        keys := keys || key;
        at := at || i;
        levels := 0;
        while l.parent is not null and levels < 4 loop
            above := l.parent;
            select * into l from dipwell.limits x where x.name = above;
            if not found then
                perform dipwell_internal.limit_id(above, fields[1]);
            end if;
            levels := levels + 1;
            key := dipwell_internal.parent_key(key);
            if verb <> 6 then
                perform dipwell_internal.check_verb(l, verb, ttl, fields[1]);
                up_ids := up_ids || l.id;
                up_keys := up_keys || key;
                up_at := up_at || i;
            end if;
        end loop;
        if levels > 0 or l.parts is not null and not l.shared then
            perform dipwell_internal.check_path(limit_names[i], keys[i], levels + dipwell_internal.key_parts(l), fields[2]);
        end if;
    end loop;
    ids := ids || up_ids;
    keys := keys || up_keys;
    at := at || up_at;
    for e in 1..cardinality(ids) loop
        i := at[e];
        j := array_position(names, ids[e] || ' ' || keys[e]);
        plan := of_plans[i];
        if e > k then
            plan := (select p.name from dipwell.plans p join dipwell.limits x on x.id = p.limit_id and x.version = p.version
                where p.limit_id = ids[e] and p.name = of_plans[i] and p.callable = 'children');
        end if;
        if j is null then
            j := cardinality(names) + 1;
            if j > 16 then
                perform dipwell_internal.wrong('limit_names: are more than 16 with the parents of the limits');
            end if;
            names[j] := ids[e] || ' ' || keys[e];
            c.ids := c.ids || ids[e];
            c.keys := c.keys || keys[e];
            c.plans := c.plans || plan;
            costs[j] := of_costs[i];
            floors[j] := case when e <= k then coalesce(of_floors[i], 0) else 0 end;
            takes[j] := 1 << (i - 1);
        else
            perform dipwell_internal.wrong(case
                when e > k and j <= c.named then format('limit_names[%s]: limit %s is above limit %s, which is in the same call and takes from it as well', i,
                    (select x.name from dipwell.limits x where x.id = ids[e]), limit_names[i])
                when (c.plans)[j] is distinct from plan then
                    format('plans[%s]: another take of the same limit and key, %s, has another plan', i, (select x.name from dipwell.limits x where x.id = ids[e])) end);
            costs[j] := dipwell_internal.check_cost(costs[j] + of_costs[i], 'costs');
            floors[j] := greatest(floors[j], case when e <= k then of_floors[i] end);
            takes[j] := takes[j] | (1 << (i - 1));
        end if;
        if e <= k then
            own[e] := j;
            c.named := cardinality(names);
        end if;
    end loop;
    c.costs := costs;
    c.floors := floors;
    c.takes := takes;
    c.own := own;
    return c;
end $$;

-- Which entries of a call its result has, in the order of its rows.
create function dipwell_internal.answered(c dipwell_internal.call) returns table (at int, i bigint) language sql immutable as
$$ select * from unnest(c.own || array(select generate_series(c.named + 1, cardinality(c.ids)))) with ordinality $$;

