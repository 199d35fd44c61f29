with made as (
    insert into dipwell.key_overrides
    select (jsonb_populate_record(o, jsonb_build_object('key', $2::text || ':' || i, 'until', o.until + i))).*
    from dipwell.key_overrides o join dipwell.limits l on l.id = o.limit_id, generate_series(1, $3::int) i
    where l.name = $1 and o.key = $2 || ':0'
    returning limit_id, key, id
)
insert into dipwell.buckets (used, ts, limit_id, version, key)
select 0, dipwell_internal.now_us(), limit_id, dipwell_internal.override_number(id), key from made
