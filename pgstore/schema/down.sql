-- Removes the schema with everything in it. Objects of others that depend on it
-- are an error, and then nothing is removed.
do $$
begin
    if exists (select from pg_extension where extname = 'pg_cron') then
        execute $cron$ select cron.unschedule(jobid) from cron.job where jobname = 'dipwell-sweep' $cron$;
    end if;
exception when others then
    raise notice 'the sweep could not be unscheduled: %', sqlerrm;
end $$;
drop table if exists dipwell.sweep_state, dipwell.samples, dipwell.paces, dipwell.shards, dipwell.hold_parts, dipwell.plans, dipwell.call_sites, dipwell.key_overrides, dipwell.audit, dipwell.top_hours; -- older versions have none
drop table pg_temp.dipwell_grants, dipwell.revision, dipwell.reservations, dipwell.buckets, dipwell.versions, dipwell.limits, dipwell.migrations;
drop schema dipwell_internal;
drop schema dipwell;
