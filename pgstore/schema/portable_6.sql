-- What a cancellation may give back: buckets.lows is mark, next, and a pair for
-- each entry: number, units. For new tables and those of version 5.
alter table dipwell.buckets add column if not exists lows bigint[];

alter table dipwell.reservations add column if not exists part_due bigint not null default 0;

alter table dipwell.reservations add column if not exists number bigint not null default 0;

alter table dipwell.reservations add column if not exists mark bigint not null default 0;

alter table dipwell.reservations add column if not exists slack bigint;

alter table dipwell.reservations add column if not exists rest boolean not null default false;

alter table dipwell.reservations add column if not exists parts int not null default 1;
