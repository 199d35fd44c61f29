do $$
begin
    if exists (select from pg_extension where extname = 'pg_cron') then
        execute $cron$ select cron.unschedule(jobid) from cron.job where jobname = 'dipwell-sweep' $cron$;
    end if;
exception when others then
    raise notice 'the sweep could not be unscheduled: %', sqlerrm;
end $$;
drop view if exists dipwell.status;
drop function if exists dipwell.level, dipwell.sweep, dipwell.drop, dipwell.define, dipwell.cancel, dipwell.take_all,
    dipwell.reset, dipwell.refund, dipwell.charge, dipwell.reserve, dipwell.take_up_to, dipwell.check, dipwell.take,
    dipwell.ask, dipwell.limit_id, dipwell.check_cost, dipwell.check_key;
drop type if exists dipwell.decision;
