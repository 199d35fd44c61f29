drop function if exists dipwell.step, dipwell.is_full, dipwell.carry_units, dipwell.carry, dipwell.convert_used, dipwell.spread,
    dipwell.used_at, dipwell.wait, dipwell.tick, dipwell.calendar_boundary, dipwell.first_at, dipwell.zone_offset,
    dipwell.length, dipwell.mul_div, dipwell.floor_div, dipwell.now_us;
