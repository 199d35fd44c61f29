
-- == The audit: what people have changed

create function dipwell_internal.audit_id(at bigint, n bigint) returns text language sql immutable as
$$ select lpad(to_hex(at), 14, '0') || lpad(to_hex(n), 8, '0') $$;

-- Adds an entry to audit and deletes those older than 400 days. Entries are deleted only by
-- age, whatever their number: otherwise whoever may add some could delete all others. Entries
-- that another transaction is deleting are left to it, so that no call waits for another
-- transaction.
create function dipwell_internal.record_change(who text, action text, limit_name text, key text, what text, note text, at bigint default null) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    n bigint := coalesce(case when dipwell_internal.may_set_clock() then at end, dipwell_internal.now_us());
begin
    insert into dipwell.audit (id, at, who, action, limit_name, key, what, note)
    values (dipwell_internal.audit_id(n, (random() * 4294967295)::bigint), timestamptz 'epoch' + dipwell_internal.length(n),
        coalesce(who, ''), action, coalesce(limit_name, ''), coalesce(key, ''), coalesce(what, ''), coalesce(note, ''));
    delete from dipwell.audit x where x.ctid = any (array(
        select y.ctid from dipwell.audit y where y.id <= dipwell_internal.audit_id(greatest(n - 34560000000000, 0), 0) for update skip locked));
end $$;

create function dipwell_internal.changed(action text, limit_name text, key text default null, what text default null, note text default null) returns void language sql volatile as
$$ select dipwell_internal.record_change(session_user, action, limit_name, key, what, note) $$;

create view dipwell.top_keys as
    select (x.report ->> 'hour')::timestamptz as hour, x.process, l.list, k.e ->> 'limit' as limit_name, k.e ->> 'key' as key,
        (k.e ->> 'count')::bigint as count, (k.e ->> 'error')::bigint as error
    from dipwell.top_hours x cross join lateral (values ('busiest'), ('refused')) l (list)
        cross join lateral jsonb_array_elements(x.report -> l.list -> 'keys') k (e)
    where not x.of_minute;
