drop function if exists dipwell.compile, dipwell.period_of, dipwell.parse_offset, dipwell.format_per, dipwell.most_units,
    dipwell.bad_limit, dipwell.drop_limit, dipwell.put_limit;
