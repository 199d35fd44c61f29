insert into dipwell.buckets (used, ts, limit_id, version, key)
select v.unit, dipwell_internal.now_us(), l.id, l.version, 'user:' || k
from dipwell.limits as l
join dipwell.versions as v on v.limit_id = l.id and v.number = l.version,
    generate_series(0, $2 - 1) as k
where l.name = $1
