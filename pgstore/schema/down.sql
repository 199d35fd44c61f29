-- Removes the schema with everything in it. If objects of others depend on it,
-- that is an error, and nothing is removed.
do $$
begin
    if exists (select from pg_extension where extname = 'pg_cron') then
        execute $cron$ select cron.unschedule(jobid) from cron.job where jobname = 'dipwell-sweep' $cron$;
    end if;
exception when others then
    raise notice 'the sweep could not be unscheduled: %', sqlerrm;
end $$;
drop table pg_temp.dipwell_grants, dipwell.audit, dipwell.buckets, dipwell.hold_parts, dipwell.key_overrides, dipwell.limits, dipwell.migrations,
    dipwell.plans, dipwell.reservations, dipwell.revision, dipwell.sweep_state, dipwell.top_hours, dipwell.usage, dipwell.versions;
drop schema dipwell_internal;
drop schema dipwell;
