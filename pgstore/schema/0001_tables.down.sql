drop table if exists dipwell.revision, dipwell.reservations, dipwell.buckets, dipwell.versions, dipwell.limits;
