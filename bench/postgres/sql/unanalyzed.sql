-- These tables are never analyzed, not even by autovacuum.
do $$
declare
    name regclass;
begin
    for name in select oid from pg_class where relkind = 'r' and relnamespace in ('dipwell'::regnamespace, 'dipwell_internal'::regnamespace) loop
        execute format('alter table %s set (autovacuum_enabled = false)', name);
    end loop;
end
$$;
