-- Roles: dipwell_app takes, dipwell_service is for the Go store and services (rows,
-- not definitions), dipwell_admin may do everything. If a role is missing and may
-- not be created, grant by hand: an upgrade keeps such grants.
do $$
declare
    app     constant text[] := array['take', 'take_all', 'check', 'take_up_to', 'reserve', 'charge', 'cancel', 'hold', 'hold_all', 'settle', 'settle_all', 'extend', 'key', 'observe'];
    service constant text[] := app || array['refund', 'reset', 'sweep'];
    admin   constant text[] := array['put_limit', 'put_plans', 'mark_parent', 'drop_limit', 'bad_limit', 'change_plans', 'set_override', 'end_override', 'change_override', 'begin_pace', 'changed']; -- functions of dipwell_internal
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
        execute format('grant insert, update, delete on dipwell.buckets, dipwell.shards, dipwell.reservations, dipwell.hold_parts to %I', who);
        execute format('grant insert, delete on dipwell.top_hours to %I', who);
        execute format('grant update, delete on dipwell.key_overrides to %I', who); -- those that have ended or are of an older version
    end loop;
    if exists (select from pg_roles where rolname = 'dipwell_admin') then
        grant insert, update, delete on dipwell.limits, dipwell.versions, dipwell.paces, dipwell.samples, dipwell.plans, dipwell.key_overrides, dipwell.revision to dipwell_admin;
    end if;
    -- Restores what 0_drop.sql found. Some functions were in schema dipwell before.
    for f in select p.oid::regprocedure as signature, p.pronamespace::regnamespace as home, g.grantee::regrole as who
        from pg_temp.dipwell_grants g join pg_proc p on p.proname = g.name
        where p.pronamespace in ('dipwell'::regnamespace, 'dipwell_internal'::regnamespace) loop
        execute format('grant usage on schema %s to %s', f.home, f.who);
        execute format('grant execute on function %s to %s', f.signature, f.who);
    end loop;
end $$;
drop table pg_temp.dipwell_grants;
