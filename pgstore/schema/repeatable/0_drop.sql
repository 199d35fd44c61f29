
-- == Functions, views and types of an earlier version are dropped

-- The files of this directory are run by every migration, after its changes of the
-- tables: this one drops all functions, views and types of any version, and the
-- others create those of the current version. Schema dipwell has what users need,
-- dipwell_internal the rest.

-- The grants on dipwell's functions now, for 5_roles.sql to restore.
create temporary table dipwell_grants as
    select distinct p.pronamespace as home, p.proname as name, a.grantee
    from pg_proc p, aclexplode(p.proacl) a
    where p.pronamespace in ('dipwell'::regnamespace, 'dipwell_internal'::regnamespace) and a.grantee not in (0, p.proowner);

do $$
declare
    ours constant regnamespace[] := array['dipwell', 'dipwell_internal']::regnamespace[];
    x record;
begin
    for x in select format('drop view %s', c.oid::regclass) as command, 1 as step from pg_class c where c.relnamespace = any (ours) and c.relkind = 'v'
            union all select format('drop function %s', p.oid::regprocedure), 2 from pg_proc p where p.pronamespace = any (ours)
            union all select format('drop type %s', c.oid::regclass), 3 from pg_class c where c.relnamespace = any (ours) and c.relkind = 'c' order by step loop
        execute x.command;
    end loop;
end $$;
