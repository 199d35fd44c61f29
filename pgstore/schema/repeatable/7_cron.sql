
-- == The sweep every minute, with pg_cron

do $$
begin
    if exists (select from pg_extension where extname = 'pg_cron') then
        execute $cron$ select cron.schedule('dipwell-sweep', '* * * * *', 'select dipwell.sweep(10000)') $cron$;
    end if;
exception when others then
    raise notice 'pg_cron is installed but the sweep could not be scheduled: %', sqlerrm;
end $$;
