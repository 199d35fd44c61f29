
-- == The public function that counts usage

-- These are counts of programs that decide in SQL. Services write their counts separately.

create function dipwell.count_usage(limit_name text, key text, allowed bigint default 0, refused bigint default 0, tokens bigint default 0) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
declare
    lim    int := dipwell_internal.limit_id(limit_name, 'limit_name');
    of_key text := dipwell_internal.check_key(lim, key);
    n      bigint := dipwell_internal.now_us();
begin
    perform dipwell_internal.wrong(format('limit_name: limit %s does not count usage; define it with usage => true', limit_name))
        from dipwell.limits l where l.id = lim and not l.usage;
    perform dipwell_internal.check_cost(c.n, c.field) from (values (allowed, 'allowed'), (refused, 'refused'), (tokens, 'tokens')) c (n, field);
    insert into dipwell.usage as u (limit_id, key, hour, by_sql, allowed, refused, tokens)
        values (lim, of_key, timestamptz 'epoch' + dipwell_internal.length(n - n % 3600000000), true, count_usage.allowed, count_usage.refused, count_usage.tokens)
        on conflict on constraint usage_pkey do update set allowed = u.allowed + excluded.allowed, refused = u.refused + excluded.refused, tokens = u.tokens + excluded.tokens;
end $$;
comment on function dipwell.count_usage is
    'Adds to what a key of a limit with usage used in this hour, for programs that decide in SQL. A rollback takes it back.';
