-- The statements of the program of schema version 6 that call functions of the
-- schema. TestOldStatements runs them on the present one: programs of the version
-- before go on while a database is upgraded. One blank line ends a statement.

select dipwell_internal.put_limit(
    row(null, $1::text, $2::text, $3::bigint, $4::text, $5::bigint, $6::bigint, $7::bigint, $8::text, $9::text, $10::text, $11::boolean,
        $12::int, $13::text, $14::bigint, $15::boolean, $16::text, 0, 0, 0, 0, 0, 0, 0, false)::dipwell.limits,
    row(0, 0, 0, $9::text, $17::bigint, $18::bigint, $19::bigint, $20::bigint, $21::bigint, $22::bigint, $23::bigint, $24::bigint,
        $25::bigint, $26::bigint, $27::boolean, $28::boolean, $29::bigint, $30::bigint, $31::bigint, $32::text, $4::text, $8::text)::dipwell.versions,
    $33::bigint)

select dipwell_internal.drop_limit($1, $2)

select allowed, never, shadow, granted, remaining, retry, reset, delay, row_used, row_ts, row_version
from dipwell_internal.decide($1::int[], $2::text[], $3::int[], $4::bigint[], $5::bigint[], $6::uuid, $7::bigint)

select dipwell_internal.give_back($1::uuid, $2::bigint)

select dipwell_internal.sweep_at($1, coalesce($2, dipwell_internal.settled()))

select dipwell_internal.retire($1)

select dipwell_internal.make_room()

select min(u.at) from unnest($2::bigint[], $3::bigint[]) u (at, ahead) where dipwell_internal.zone_offset($1::text, u.at) <> u.ahead
