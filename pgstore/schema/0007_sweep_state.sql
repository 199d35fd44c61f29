-- Where the sweep of buckets goes on, and what sweeps did. It has one row, which
-- a sweep locks, so that one at a time goes over the table.
create table dipwell.sweep_state (
    page        bigint not null,           -- of buckets: where the next sweep goes on
    began       bigint not null,           -- µs since the Unix epoch: the pass under way; 0: none
    found       bigint not null,           -- rows deleted by the pass under way
    passed      bigint not null,           -- µs: when the last whole pass ended; 0: none did
    took        bigint not null,           -- µs: how long the last whole pass took, rests included
    pass_swept  bigint not null,           -- rows that it deleted
    passes      bigint not null,           -- whole passes
    swept       bigint not null,           -- rows deleted by all sweeps
    spent       bigint not null            -- µs that all sweeps worked
);
insert into dipwell.sweep_state values (0, 0, 0, 0, 0, 0, 0, 0, 0);
