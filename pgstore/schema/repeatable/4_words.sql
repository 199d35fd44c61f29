
-- == Errors for keys that are not text

-- PostgreSQL chooses these functions for a key that is neither text nor an untyped literal.
-- Its own error would not say what to write.

create function dipwell_internal.not_text(key anynonarray) returns void language sql volatile as $$
    select dipwell_internal.wrong(format('key: has type %s, but a key is text; write %s',
        pg_typeof(key), case pg_typeof(key) when 'inet'::regtype then 'host(address)' else 'user_id::text' end))
$$;

create function dipwell.take(limit_name text, key anynonarray, cost bigint default 1, plan text default null, floor bigint default null) returns dipwell.decision
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$ begin perform dipwell_internal.not_text(key); end $$;
comment on function dipwell.take(text, anynonarray, bigint, text, bigint) is 'Raises an error: the key must be text.';

create function dipwell.check(limit_name text, key anynonarray, cost bigint default 1, plan text default null, floor bigint default null) returns dipwell.decision
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$ begin perform dipwell_internal.not_text(key); end $$;
comment on function dipwell.check(text, anynonarray, bigint, text, bigint) is 'Raises an error: the key must be text.';

create function dipwell.hold(limit_name text, key anynonarray, cost bigint default 1, ttl interval default null, id text default null,
    plan text default null, floor bigint default null) returns dipwell.held
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$ begin perform dipwell_internal.not_text(key); end $$;
comment on function dipwell.hold(text, anynonarray, bigint, interval, text, text, bigint) is 'Raises an error: the key must be text.';

create function dipwell.override(limit_name text, key anynonarray, plan text default null, rate bigint default null, per interval default null,
    burst bigint default null, until timestamptz default null, note text default null, start text default null)
returns table (replaced_plan text, replaced_rate bigint, replaced_per text, replaced_burst bigint, replaced_until timestamptz, replaced_note text, replaced_start text)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$ begin perform dipwell_internal.not_text(key); end $$;
comment on function dipwell.override(text, anynonarray, text, bigint, interval, bigint, timestamptz, text, text) is
    'Raises an error: the key must be text.';
