-- What a cancellation may give back. Reservations of before are of no list, so
-- that nothing is given back of them.
alter table dipwell.buckets add column lows bigint[];
alter table dipwell.reservations
    add column number   bigint not null default 0,
    add column mark     bigint not null default 0,
    add column slack    bigint,
    add column rest     boolean not null default false,
    add column part_due bigint not null default 0,
    add column parts    int not null default 1;
update dipwell.reservations x set part_due = due, parts = (select count(*) from dipwell.reservations y where y.id = x.id);
alter table dipwell.reservations
    alter column number drop default,
    alter column mark drop default,
    alter column rest drop default,
    alter column part_due drop default,
    alter column parts drop default;
