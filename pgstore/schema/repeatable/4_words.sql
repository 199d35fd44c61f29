
-- == Errors for keys that are not text

-- PostgreSQL chooses these functions for a key that is neither text nor an untyped literal.
-- Its own error would not say what to write.

create function dipwell_internal.not_text(key anynonarray) returns void language sql volatile as $$
    select dipwell_internal.wrong(format('key: has type %s, but a key is text; write %s',
        pg_typeof(key), case pg_typeof(key) when 'inet'::regtype then 'host(address)' else 'user_id::text' end))
$$;

do $$
declare
    f record;
begin
    for f in select p.proname as name, replace(pg_get_function_arguments(p.oid), 'key text DEFAULT NULL::text', 'key anynonarray') as arguments, pg_get_function_result(p.oid) as result
            from pg_proc p where p.pronamespace = 'dipwell'::regnamespace and p.proname in ('take', 'check', 'hold', 'override') loop
        execute format('create function dipwell.%I(%s) returns %s language plpgsql security definer set search_path = pg_catalog, pg_temp as %L',
            f.name, f.arguments, f.result, 'begin perform dipwell_internal.not_text(key); end');
        execute (select format('comment on function %s is %L', p.oid::regprocedure, 'Raises an error: the key must be text.')
            from pg_proc p where p.pronamespace = 'dipwell'::regnamespace and p.proname = f.name and 'anynonarray'::regtype = any (p.proargtypes));
    end loop;
end $$;
