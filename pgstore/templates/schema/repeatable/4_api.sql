-- The public functions. They run as their owner with a fixed search_path, and in
-- the caller's transaction: a rollback gives the tokens back. enable_seqscan is off
-- because a plan made while the table is empty would scan it, and would be kept
-- while a long transaction fills it.

create function dipwell_internal.check_key(key text, field text) returns text language plpgsql immutable as $$
begin
    if key = '' then
        raise exception using errcode = 'invalid_parameter_value', constraint = field,
            message = field || ': is empty; leave it out (null) for the limit''s one shared bucket';
    elsif octet_length(key) > 512 then
        raise exception using errcode = 'invalid_parameter_value', constraint = field,
            message = format('%s: has %s bytes; at most 512', field, octet_length(key));
    end if;
    return coalesce(key, '');
end $$;
comment on function dipwell_internal.check_key is
    'Raises an error that names the field when key is empty or too long; returns the key of the bucket, '''' for the shared one.';

create function dipwell_internal.check_cost(cost bigint, field text) returns bigint language plpgsql immutable as $$
begin
    if cost is null or cost < 0 or cost > 9007199254740991 then
        raise exception using errcode = 'invalid_parameter_value', constraint = field,
            message = format('%s: %s is not between 0 and 2^53-1', field, coalesce(cost::text, 'null'));
    end if;
    return cost;
end $$;
comment on function dipwell_internal.check_cost is
    'Raises an error that names the field unless cost is between 0 and 2^53-1.';

create function dipwell_internal.limit_id(limit_name text, field text) returns int language plpgsql stable as $$
declare
    id int;
begin
    if limit_name is null then
        raise exception using errcode = 'invalid_parameter_value', constraint = field, message = field || ': is null';
    end if;
    select l.id into id from dipwell.limits l where l.name = limit_name;
    if not found then
        raise exception using errcode = 'undefined_object', constraint = field,
            message = format('%s: unknown limit "%s"', field, limit_name);
    end if;
    return id;
end $$;
comment on function dipwell_internal.limit_id is
    'The id of a limit; raises an error that names the field when there is none.';

-- The result of a call of one key. It is a type because PostgreSQL builds the
-- descriptor of a row of OUT parameters in every call.
create function dipwell_internal.entries(n int) returns text language sql immutable as
$$ select case n when 1 then '1 entry' else coalesce(n, 0) || ' entries' end $$;
comment on function dipwell_internal.entries is
    'A number of entries as text, for messages.';

create type dipwell.decision as (
    allowed     boolean,
    remaining   bigint,
    retry_after interval,
    reset_after interval,
    granted     bigint,
    delay       interval,
    never       boolean,
    reservation uuid
);

create function dipwell.check(limit_name text, key text default null, cost bigint default 1) returns dipwell.decision
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
    return dipwell_internal.ask(1, limit_name, key, cost);
end $$;
comment on function dipwell.check is
    'Returns the result that take would have, and changes nothing.';

create function dipwell.take_up_to(limit_name text, key text default null, cost bigint default 1) returns dipwell.decision
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
    return dipwell_internal.ask(2, limit_name, key, cost);
end $$;
comment on function dipwell.take_up_to is
    'Takes as many whole tokens as there are, at most cost; refused if there are none. The result has their number in granted.';

create function dipwell.reserve(limit_name text, key text default null, cost bigint default 1) returns dipwell.decision
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
    return dipwell_internal.ask(3, limit_name, key, cost);
end $$;
comment on function dipwell.reserve is
    'Takes tokens in advance, into debt up to max_debt: act after delay, or cancel(reservation) before that.';

create function dipwell.charge(limit_name text, key text default null, cost bigint default 1) returns dipwell.decision
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
    return dipwell_internal.ask(4, limit_name, key, cost);
end $$;
comment on function dipwell.charge is
    'Takes tokens even if there are too few, for a cost that is known only afterwards.';

create function dipwell.refund(limit_name text, key text default null, cost bigint default 1) returns dipwell.decision
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
    return dipwell_internal.ask(5, limit_name, key, cost);
end $$;
comment on function dipwell.refund is
    'Gives tokens back, up to a full bucket.';

create function dipwell.reset(limit_name text, key text default null, cost bigint default 1) returns dipwell.decision
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
    return dipwell_internal.ask(6, limit_name, key, 0);
end $$;
comment on function dipwell.reset is
    'Makes a bucket full and ends its reservations; cost is ignored.';

create function dipwell.cancel(reservation uuid) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
begin
    if reservation is null then
        raise exception using errcode = 'invalid_parameter_value', constraint = 'reservation', message = 'reservation: is null';
    end if;
    if dipwell_internal.give_back(reservation) is not true then
        raise exception using errcode = 'no_data_found', constraint = 'reservation',
            message = 'reservation: is unknown, spent, due or reset';
    end if;
end $$;
comment on function dipwell.cancel is
    'Gives back what is left of a reservation, once, and only before it is due.';

create function dipwell.define(name text, rate bigint, per interval, burst bigint default null, algorithm text default null,
    max_debt bigint default null, start text default null, on_change text default null, mode text default null)
returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    d dipwell.limits;
    period bigint := case when per is not null then dipwell_internal.period_of(per) end;
    r dipwell.versions;
begin
    d.name := name;
    d.algorithm := coalesce(algorithm, 'token_bucket');
    d.rate := rate;
    d.burst := burst;
    d.max_debt := max_debt;
    d.start := nullif(start, '');
    d.on_change := coalesce(on_change, 'keep');
    d.mode := coalesce(mode, 'enforce');
    d.auth := false;
    d.retry_jitter := 0;
    d.on_store_error := 'closed';
    d.timeout_us := 0;
    d.list_keys := false;
    d.owner := 'sql';
    d.per := dipwell_internal.format_per(nullif(period, 0));
    r := dipwell_internal.compile(d, period);
    perform dipwell_internal.put_limit(d, r);
end $$;
comment on function dipwell.define is
    'Adds a limit, or changes it while it is in use. null is the default, 0 is 0, a max_debt of -1 is unlimited. per may be months or years for windows and intervals.';

create function dipwell.drop(name text) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform dipwell_internal.drop_limit(name, 'sql');
end $$;
comment on function dipwell.drop is
    'Deletes a limit that was defined in SQL.';

create function dipwell.sweep(max_rows int default 10000) returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
    if max_rows is null or max_rows < 1 then
        raise exception using errcode = 'invalid_parameter_value', constraint = 'max_rows',
            message = format('max_rows: %s is not at least 1', coalesce(max_rows::text, 'null'));
    end if;
    return (dipwell_internal.sweep_at(max_rows, dipwell_internal.settled(), null)).swept;
end $$;
comment on function dipwell.sweep is
    'Deletes at most max_rows full rows and returns how many: fewer at the end of the table, or while another sweep is running. Call it again while it returns max_rows, each time in its own transaction.';

create function dipwell_internal.level(limit_id int, key text, used bigint, ts bigint, version int, n bigint,
    out remaining bigint, out full_at timestamptz) language plpgsql stable as $$
declare
    l dipwell.limits;
    r dipwell.versions;
    c record;
    held bigint;
begin
    select * into l from dipwell.limits x where x.id = level.limit_id;
    select * into r from dipwell.versions v where v.limit_id = l.id and v.number = l.version;
    r := dipwell_internal.spread(r, l.name, key);
    select * into c from dipwell_internal.carry(l.id, l.name, key, l.version, used, ts, version);
    held := dipwell_internal.used_at(r, c.used, c.ts, {{later "n" "c.ts"}});
    remaining := {{tokensLeft "held" "r.unit" "r.cap"}};
    full_at := timestamptz 'epoch' + n * interval '1 microsecond'
        + dipwell_internal.length(case held when 0 then 0 else dipwell_internal.wait(r, held, {{later "n" "c.ts"}}, n) end);
end $$;
comment on function dipwell_internal.level is
    'The whole tokens left of a bucket at n, and when it is full.';

create view dipwell.status as
    select l.name as limit_name, nullif(b.key, '') as key, l.cap / l.unit as capacity, s.remaining, s.full_at
    from dipwell.buckets b
    join dipwell.limits l on l.id = b.limit_id
    cross join lateral dipwell_internal.level(b.limit_id, b.key, b.used, b.ts, b.version, dipwell_internal.now_us()) s;
