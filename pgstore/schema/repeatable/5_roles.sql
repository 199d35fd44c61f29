create function dipwell_internal.reserved() returns text[] language sql immutable as
$$ select array['lock_limit', 'note_change', 'mark_overridden', 'put_limit', 'put_plans', 'mark_parent', 'drop_limit', 'change_plans', 'set_override', 'end_override', 'change_override', 'make_room_for_overrides', 'changed'] $$;
comment on function dipwell_internal.reserved is 'The functions of dipwell_internal that only dipwell_admin may call.';

-- Housekeeping is left out: a program may leave it to others.
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
comment on function dipwell_internal.lacks is 'The rights that a role lacks to decide as the Go store does.';

-- Roles: dipwell_app takes, dipwell_service is for the Go store and services (rows,
-- not definitions), dipwell_admin may do everything. If a role is missing and may
-- not be created, grant by hand: an upgrade keeps such grants.
do $$
declare
    app     constant text[] := array['take', 'take_all', 'check', 'ready', 'take_up_to', 'reserve', 'charge', 'cancel', 'hold', 'hold_all', 'settle', 'settle_all', 'extend', 'key', 'observe', 'count_usage'];
    service constant text[] := app || array['refund', 'reset', 'sweep'];
    admin   constant text[] := dipwell_internal.reserved();
    who  text;
    f    record;
begin
    foreach who in array array['dipwell_app', 'dipwell_service', 'dipwell_admin'] loop
        begin
            if not exists (select from pg_roles where rolname = who) then
                execute format('create role %I', who);
            end if;
        exception
            when insufficient_privilege then
                raise notice 'the role % is missing and may not be created here; grant by hand', who;
            when duplicate_object or unique_violation then
                null; -- created at the same time by another database of this server
        end;
    end loop;
    revoke all on all functions in schema dipwell, dipwell_internal from public;
    for who in select rolname from pg_roles where rolname in ('dipwell_app', 'dipwell_service', 'dipwell_admin') loop
        execute format('grant usage on schema dipwell to %I', who);
        for f in select p.oid::regprocedure as signature from pg_proc p where p.pronamespace = 'dipwell'::regnamespace
            and (who = 'dipwell_admin' or p.proname = any (case who when 'dipwell_app' then app else service end)) loop
            execute format('grant execute on function %s to %I', f.signature, who);
        end loop;
        continue when who = 'dipwell_app';
        execute format('grant usage on schema dipwell_internal to %I', who);
        for f in select p.oid::regprocedure as signature from pg_proc p where p.pronamespace = 'dipwell_internal'::regnamespace
            and (who = 'dipwell_admin' or p.proname <> all (admin)) loop
            execute format('grant execute on function %s to %I', f.signature, who);
        end loop;
        execute format('grant select on all tables in schema dipwell to %I', who);
        execute format('grant insert, update, delete on dipwell.buckets, dipwell.reservations, dipwell.hold_parts to %I', who);
        execute format('grant insert, delete on dipwell.top_hours to %I', who);
        execute format('grant insert, update, delete on dipwell.usage to %I', who);
    end loop;
    if exists (select from pg_roles where rolname = 'dipwell_admin') then
        grant insert, update, delete on dipwell.limits, dipwell.versions, dipwell.plans, dipwell.revision to dipwell_admin;
    end if;
    -- Restores what 0_drop.sql found.
    for f in select p.oid::regprocedure as signature, g.grantee::regrole as who
        from pg_temp.dipwell_grants g join pg_proc p on p.proname = g.name and p.pronamespace = g.home loop
        execute format('grant execute on function %s to %s', f.signature, f.who);
    end loop;
end $$;
drop table pg_temp.dipwell_grants;
