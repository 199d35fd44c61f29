
-- == Roles, and what each may do

-- The functions of dipwell_internal that only dipwell_admin may call.
create function dipwell_internal.reserved() returns text[] language sql immutable as
$$ select array['lock_limit', 'note_change', 'mark_overridden', 'put_limit', 'put_plans', 'mark_parent', 'drop_limit', 'change_plans', 'set_override', 'end_override', 'change_override', 'changed', 'grant_rights', 'grant_roles'] $$;

-- The rights that a role lacks to decide as the Go store does. Housekeeping is left out: a
-- program may leave it to others.
create function dipwell_internal.lacks(who name default current_user) returns text[] language sql stable as $$
    select array(
        select format('row security of %s is on', c.oid::regclass) from pg_class c join pg_roles r on r.rolname = who
            where c.relnamespace = 'dipwell'::regnamespace and c.relkind in ('r', 'p') and c.relrowsecurity and c.relname not in ('audit', 'top_hours', 'usage')
                and not r.rolsuper and not r.rolbypassrls and (c.relforcerowsecurity or not pg_has_role(who, c.relowner, 'usage'))
        union all
        select format('%s on dipwell.%s', p, t) from unnest('{buckets,reservations,hold_parts}'::text[]) t, unnest('{select,insert,update,delete}'::text[]) p
            where not has_table_privilege(who, 'dipwell.' || t, p)
        union all
        select 'select on dipwell.' || t from unnest('{limits,versions,plans,key_overrides,revision}'::text[]) t where not has_table_privilege(who, 'dipwell.' || t, 'select')
        union all
        select 'execute on ' || min(p.oid::regprocedure::text) || case when count(*) > 1 then format(' and %s more functions', count(*) - 1) else '' end from pg_proc p
            where p.pronamespace = 'dipwell_internal'::regnamespace and p.proname <> all (dipwell_internal.reserved())
                and p.proname !~ '^(sweep|forget|settled|retire|parts|sum_changes|record_change|audit_id|lacks)' and not has_function_privilege(who, p.oid, 'execute')
            having count(*) > 0)
$$;

-- Grants to_role what of_role may: dipwell_app, dipwell_service or dipwell_admin. For the
-- owner of the schemas.
create function dipwell_internal.grant_rights(of_role name, to_role name) returns void language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
    app     constant text[] := array['take', 'take_all', 'check', 'ready', 'take_up_to', 'reserve', 'charge', 'cancel', 'hold', 'hold_all', 'settle', 'settle_all', 'extend', 'key', 'count_usage'];
    service constant text[] := app || array['refund', 'reset', 'sweep'];
begin
    if of_role is null or of_role not in ('dipwell_app', 'dipwell_service', 'dipwell_admin') then
        perform dipwell_internal.wrong('of_role: must be dipwell_app, dipwell_service or dipwell_admin');
    end if;
    execute format('grant usage on schema dipwell to %I', to_role);
    execute (select string_agg(format('grant execute on function %s to %I', p.oid::regprocedure, to_role), '; ') from pg_proc p
        where p.pronamespace = 'dipwell'::regnamespace and (of_role = 'dipwell_admin' or p.proname = any (case of_role when 'dipwell_app' then app else service end))
            or p.pronamespace = 'dipwell_internal'::regnamespace and (of_role = 'dipwell_admin' or of_role = 'dipwell_service' and p.proname <> all (dipwell_internal.reserved())));
    if of_role <> 'dipwell_app' then
        execute format('grant usage on schema dipwell_internal to %1$I; grant select on all tables in schema dipwell to %1$I; '
            'grant insert, update, delete on dipwell.buckets, dipwell.reservations, dipwell.hold_parts, dipwell.usage to %1$I; grant insert, delete on dipwell.top_hours to %1$I', to_role);
    end if;
    if of_role = 'dipwell_admin' then
        execute format('grant insert, update, delete on dipwell.limits, dipwell.versions, dipwell.plans, dipwell.revision to %I', to_role);
    end if;
end $$;

-- Creates the roles and grants what each may. Returns the roles that are missing and may
-- not be created. For the owner of the schemas.
create function dipwell_internal.grant_roles() returns text[] language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
    who     name;
    missing text[];
begin
    foreach who in array array['dipwell_app', 'dipwell_service', 'dipwell_admin'] loop
        begin
            if not exists (select from pg_roles where rolname = who) then
                execute format('create role %I', who);
            end if;
            perform dipwell_internal.grant_rights(who, who);
        exception
            when insufficient_privilege then
                missing := missing || who::text;
            when duplicate_object or unique_violation then -- created at the same time by another database of this server
                perform dipwell_internal.grant_rights(who, who);
        end;
    end loop;
    return missing;
end $$;

-- dipwell_app takes, dipwell_service is for the Go store and services (rows, not
-- definitions), dipwell_admin may do everything. An upgrade keeps other grants.
do $$
declare
    missing text[];
    f record;
begin
    revoke all on all functions in schema dipwell, dipwell_internal from public;
    missing := dipwell_internal.grant_roles();
    if missing is not null then
        raise notice 'The role % may not create roles, and % missing. Until they are there, only % may call dipwell. A role that may create roles should run: create role %; then % should run: select dipwell_internal.grant_roles(). Or it grants the same to a role that is there: select dipwell_internal.grant_rights(''dipwell_app'', ''NAME'')',
            current_user, array_to_string(missing, ', ') || case when cardinality(missing) > 1 then ' are' else ' is' end, current_user, array_to_string(missing, '; create role '), current_user;
    end if;
    -- Restores the grants that 0_drop.sql found.
    for f in select p.oid::regprocedure as signature, g.grantee::regrole as who
        from pg_temp.dipwell_grants g join pg_proc p on p.proname = g.name and p.pronamespace = g.home loop
        execute format('grant execute on function %s to %s', f.signature, f.who);
    end loop;
end $$;
drop table pg_temp.dipwell_grants;
