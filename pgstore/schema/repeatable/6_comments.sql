
-- == Comments of tables, views, types and columns

-- The comments of functions in schema dipwell are next to the functions.
comment on schema dipwell is 'Rate limits: the public functions, tables and views.';
comment on schema dipwell_internal is 'Helpers of schema dipwell, which may change with any version: do not call them.';
comment on table dipwell.limits is 'The limits: what was defined, and the numbers of the present version that a take needs.';
comment on table dipwell.versions is 'The rules under which rows may still be, including the current one.';
comment on table dipwell.plans is 'The plans of the limits at each of their versions.';
comment on table dipwell.key_overrides is 'Definitions that decide calls of single keys in place of their limit.';
comment on table dipwell.buckets is 'One row for each key in use. A missing row is a full bucket.';
comment on table dipwell.reservations is 'Reservations that can still be cancelled, and cancelled ones of which some units cannot be given back yet.';
comment on table dipwell.hold_parts is 'What holds took of each limit and key, until some time after they have ended.';
comment on table dipwell.audit is 'Changes that people have made, by the service or by SQL: all of the last 400 days.';
comment on table dipwell.top_hours is 'The keys with the most decisions and refusals of each hour, of each service, for a week.';
comment on table dipwell.usage is 'What keys of limits with usage were answered in each hour of the last 31 days.';
comment on table dipwell.revision is 'Changes of limits: while the sum of n is the same, no limit has changed.';
comment on table dipwell.sweep_state is 'The progress of sweeps. One row, locked by one sweep at a time.';
comment on table dipwell.migrations is 'The migrations that were applied. The largest version is that of the schema.';
comment on view dipwell.overrides is 'The overrides of keys that have not ended, without blocks.';
comment on view dipwell.blocks is 'The keys that are blocked now because calls of them were refused.';
comment on view dipwell.status is 'The current state of buckets, in tokens.';
comment on view dipwell.holds is 'Live holds, a row for each limit and key.';
comment on view dipwell.top_keys is 'The keys of top_hours, a row each.';
comment on type dipwell.decision is 'The result of a call of one key.';
comment on type dipwell.held is 'The result of hold for one limit and key.';
comment on type dipwell.settled is 'The result of settle for one limit and key.';

-- Columns with the same name mean the same, unless a comment names a table. Times in bigint
-- are µs since the Unix epoch.
do $$
declare
    c record;
begin
    for c in with says (relation, name, comment) as (values
        ('', 'add', 'Units that come back at a tick.'),
        ('', 'allowed', 'Whether the call is allowed; a refusal has changed nothing.'),
        ('', 'burst', 'Capacity in tokens; null: the rate, or the limit''s.'),
        ('', 'cap', 'Units that takes may use.'),
        ('', 'debt', 'Units that a reserve may use beyond cap.'),
        ('', 'delay', 'Time to wait before acting, after reserve; otherwise 0.'),
        ('', 'every', 'µs between ticks; 0: by calendar.'),
        ('', 'expires', 'When the hold expires; null if refused.'),
        ('', 'granted', 'Tokens taken.'),
        ('', 'hour', 'When the hour began.'),
        ('', 'hold', 'The argument of settle and extend; null if refused.'),
        ('', 'key', 'The caller''s key. The bucket of a shared limit has the empty one, which is null in views.'),
        ('', 'limit_id', 'limits.id.'),
        ('', 'limit_name', 'limits.name.'),
        ('', 'mark', 'The first entry of the lows that it is in. Nothing is given back to a row with others.'),
        ('', 'max_charge', 'The largest charge, in tokens; null: ten bursts.'),
        ('', 'max_used', 'Units at which a bucket''s used stops growing.'),
        ('', 'mode', 'enforce, shadow, unlimited or blocked; null: as the limit.'),
        ('', 'never', 'Whether the call can never be allowed.'),
        ('', 'note', 'The reason, if one was given.'),
        ('', 'number', 'In the lows of its row, from 1; 0: it is in none.'),
        ('', 'parts', 'Number of rows of the same id.'),
        ('', 'per', 'The period of rate, as in 250ms, 1m, 3mo; null: the limit''s.'),
        ('', 'plan', 'The plan that was named, or that decides; null: none.'),
        ('', 'rate', 'Tokens that come back in each period per; null: the limit''s.'),
        ('', 'remaining', 'Whole tokens left.'),
        ('', 'repeated', 'Whether the same call was made before, and nothing was changed now.'),
        ('', 'reservation', 'The argument of cancel, if delay is above 0.'),
        ('', 'reset_after', 'Time until the bucket is full.'),
        ('', 'retry_after', 'Time until the same call would be allowed without further calls; null if allowed or never.'),
        ('', 'rule', 'The rule that decides, in the columns of versions.'),
        ('', 'start', 'When windows begin: an offset such as 0s, a time of day such as 06:00 Europe/Rome, or first_call; null: different for each key, or as the limit.'),
        ('', 'takes', 'A bit for each take of the call that it is for.'),
        ('', 'tokens', 'Tokens asked for.'),
        ('', 'ts', 'When used was counted.'),
        ('', 'unit', 'Units in a token.'),
        ('', 'units', 'Units taken, or that can still be given back.'),
        ('', 'until', 'When it ends; null: never.'),
        ('', 'used', 'Units taken and not yet given back, at ts.'),
        ('', 'version', 'The version of the limit under which units are counted.'),
        ('limits', 'id', 'Identifies the limit. One that is dropped and defined again gets another.'),
        ('limits', 'name', 'Printable ASCII, at most 128 bytes.'),
        ('limits', 'algorithm', 'token_bucket, fixed_window, interval, leaky_bucket, concurrency or sliding_window.'),
        ('limits', 'max_debt', 'Tokens that a reserve may take beyond the burst; null: one burst, -1: unlimited.'),
        ('limits', 'on_change', 'How used tokens are converted into the next version: keep, proportional or reset.'),
        ('limits', 'mode', 'enforce or shadow.'),
        ('limits', 'auth', 'Whether services answer /v1/auth for it.'),
        ('limits', 'retry_jitter', 'Largest percentage by which services lengthen Retry-After.'),
        ('limits', 'on_store_error', 'How programs decide while the database cannot: open, closed or local.'),
        ('limits', 'timeout_us', 'Timeout of a call in µs; 0: the caller''s only.'),
        ('limits', 'list_keys', 'Whether stores that keep only hashes of keys should keep the text. PostgreSQL always does.'),
        ('limits', 'usage', 'Whether services count what each key uses in each hour.'),
        ('limits', 'owner', 'Who may change it: code, api, sql, rls, file or file:NAME, followed by the revision and digest of a file.'),
        ('limits', 'version', 'Number of the current version. unit, every, add and cap are those of it.'),
        ('limits', 'grid', 'A tick before any time that can occur.'),
        ('limits', 'ticks', 'Ticks after which any bucket is full.'),
        ('limits', 'plain', 'Whether the numbers in this row are enough to decide a take from a row.'),
        ('limits', 'spread', 'Whether they are if dipwell_internal.key_offset is added to grid.'),
        ('limits', 'shared', 'Whether it has one bucket for everybody, so that its calls have no key.'),
        ('limits', 'plans', 'Named variants, as in pro:rate=600;burst=1000|staff:mode=unlimited; null: none.'),
        ('limits', 'parent', 'The limit from which a take takes as well; null: none.'),
        ('limits', 'parts', 'Number of parts of the keys of a topmost parent; 0: 1, or none if it is shared; null: it is not one.'),
        ('limits', 'ttl_us', 'The longest time that a hold may ask for, in µs; null or 0: a day.'),
        ('limits', 'on_expire', 'What an expired hold does: give_back or keep; null: give_back.'),
        ('limits', 'lease_us', 'How long a process may use tokens that it took in advance, in µs; null: no leases.'),
        ('limits', 'shards', 'Rows that each key has; null or 0: one.'),
        ('limits', 'block_us', 'How long a key is blocked after a refusal for want of tokens, in µs; null: it is not.'),
        ('limits', 'adaptive', 'The lowest rate and the target of an adaptive limit, as in floor=50;latency=200ms; null: the rate is fixed.'),
        ('limits', 'overridden', 'Whether keys may have overrides; null: none ever had one.'),
        ('versions', 'number', 'From 1.'),
        ('versions', 'since', 'When it began; it ends when the next one begins.'),
        ('versions', 'policy', 'How used tokens are converted into this version: keep, proportional or reset.'),
        ('', 'origin', 'The time of a tick; with a calendar, µs after each boundary; -1: windows begin with a call, and buckets.ts is when.'),
        ('versions', 'most', 'The largest reserve that could ever be granted, in tokens.'),
        ('versions', 'leaky', 'Whether take reserves, as in a leaky bucket.'),
        ('versions', 'spread', 'Whether the origin depends on the key.'),
        ('versions', 'sliding', 'Whether used is of two windows: the tokens of the present one, and 2^26 times those of the one before.'),
        ('versions', 'months', 'Months in a calendar''s unit, otherwise 0.'),
        ('', 'days', '1, 7 or 14 if a calendar''s unit is of days, otherwise 0.'),
        ('', 'clock', 'Seconds after the beginning of a calendar''s unit, as if each month had 31 days.'),
        ('', 'zone', 'The calendar''s IANA time zone; empty without a calendar.'),
        ('versions', 'settings', 'The settings of the limit, from which its plans and overrides are compiled, as a JSON object of texts.'),
        ('plans', 'number', 'buckets.version of rows under the plan: the version, and above its 20 bits the index of the plan from 1.'),
        ('plans', 'version', 'versions.number.'),
        ('plans', 'name', 'Name of the plan.'),
        ('plans', 'callable', 'true: callers may name it; false: only an override gives it; children: calls of the limit''s children choose it.'),
        ('key_overrides', 'id', 'Rows of buckets under it have the version id - 2^31. It changes with each version of the limit.'),
        ('key_overrides', 'under', 'The override of the key that stands, in the columns of this table, if this one ends; null: none.'),
        ('key_overrides', 'version', 'The version of the limit for which mode and rule were computed.'),
        ('buckets', 'version', 'The definition under which used is counted: a version of the limit, plans.number, or key_overrides.id - 2^31.'),
        ('buckets', 'lows', 'How much records can still give back: mark, next number, number of live holds, 1 if there are other records, and for each entry number and units, but for the units of the last.'),
        ('buckets', 'low', 'The last units of lows: the least that was used since the last record was made.'),
        ('buckets', 'due', 'When the first live record of the row ends, or earlier; null: it has none.'),
        ('reservations', 'id', 'The argument of cancel.'),
        ('reservations', 'due', 'When the caller may act; after that it cannot be cancelled.'),
        ('reservations', 'slack', 'Units that others will have used when this part is due; null: it does not wait.'),
        ('reservations', 'rest', 'Whether it was cancelled; units then are those that cannot be given back yet.'),
        ('reservations', 'part_due', 'When this part is due.'),
        ('hold_parts', 'id', 'The argument of settle and extend.'),
        ('hold_parts', 'part', 'From 1, in the order of the call.'),
        ('hold_parts', 'ttl', 'The ttl of the call, in µs.'),
        ('hold_parts', 'due', 'When the row stops being live, and afterwards when it may be deleted.'),
        ('hold_parts', 'till', 'Until when the row is live, unless the hold is settled or reset: expires, or if it keeps its tokens, when the hold is forgotten.'),
        ('hold_parts', 'live', 'Whether units may still be given back.'),
        ('hold_parts', 'free', 'Whether it took nothing. Settling it then charges nothing, and it is never live.'),
        ('hold_parts', 'keep', 'Whether nothing is given back when it expires. It is then live until the hold is forgotten.'),
        ('hold_parts', 'reset', 'Whether it ended with a reset of its key.'),
        ('hold_parts', 'settled', 'Whether the hold was settled.'),
        ('hold_parts', 'cost', 'The cost to which it was settled, in tokens; null if it was not.'),
        ('hold_parts', 'costs', 'The costs of the settle, one for each take of the hold; null: one cost, or what was held.'),
        ('hold_parts', 'dropped', 'The name of the limit, if it was dropped.'),
        ('hold_parts', 'call', 'What else must be the same in a repeated call, such as plans and floors; null: nothing.'),
        ('audit', 'id', '14 hexadecimal digits of the time in µs, and 8 that differ between entries of the same time.'),
        ('audit', 'at', 'When, by the server''s clock.'),
        ('audit', 'who', 'The address of the caller, or the user of the database.'),
        ('audit', 'action', 'override, end-override, reset, refund, settle, define or drop.'),
        ('audit', 'what', 'The new setting, and after "; was " the former one of a limit or plan.'),
        ('audit', 'role', 'The role that connected to the database, such as that of a service; who is as the service says.'),
        ('top_hours', 'id', 'As in audit.'),
        ('top_hours', 'at', 'When the service wrote it: at the end of the hour, or when the service stopped.'),
        ('top_hours', 'process', 'The service: its host and process id.'),
        ('top_hours', 'of_minute', 'Whether the report is of a minute, which is kept for an hour.'),
        ('top_hours', 'report', 'hour, or the minute; busiest and refused: counted, the decisions of all keys; keys, a list of limit, key, count and error; unlisted_at_most, the largest count of another key; counts: of a minute the decisions of each limit, and how long they took; of an hour, by limit, calls and refused ones.'),
        ('top_keys', 'process', 'The service that counted: each counts its own decisions.'),
        ('top_keys', 'list', 'busiest: count has decisions. refused: count has refusals, also those that shadow mode allowed.'),
        ('top_keys', 'key', 'As callers gave it, or its hash if the service has key_secret_file; empty: the shared bucket.'),
        ('top_keys', 'count', 'The true count is at most this.'),
        ('top_keys', 'error', 'The true count is at least count - error.'),
        ('usage', 'key', 'As in buckets. For a limit that is not shared, the empty one has the sum of the keys that a service had no room for.'),
        ('usage', 'by_sql', 'Whether count_usage has counted, and not a service.'),
        ('usage', 'allowed', 'Calls that were allowed.'),
        ('usage', 'refused', 'Calls that were refused.'),
        ('usage', 'tokens', 'Tokens that allowed calls took; of a hold, those that it was settled to.'),
        ('revision', 'id', 'Identifies the row.'),
        ('revision', 'n', 'Random, so that after a restore other changes have another sum.'),
        ('sweep_state', 'page', 'The page of buckets at which the next sweep continues.'),
        ('sweep_state', 'began', 'When the current pass began; 0: there is none.'),
        ('sweep_state', 'passed', 'When the last complete pass over the table ended; 0: never.'),
        ('sweep_state', 'took', 'Duration of the last complete pass in µs, including pauses.'),
        ('sweep_state', 'swept', 'Rows deleted by all sweeps.'),
        ('sweep_state', 'one', 'There is one row.'),
        ('migrations', 'version', 'The migration''s number.'),
        ('migrations', 'name', 'Name of the migration.'),
        ('migrations', 'applied_at', 'When it was applied.'),
        ('overrides', 'kind', 'standing: until it is ended; temporary: until a time.'),
        ('status', 'capacity', 'Tokens of a full bucket.'),
        ('status', 'full_at', 'When the bucket will be full without further calls.'))
        select r.oid::regclass as relation, a.attname as name, coalesce(o.comment, s.comment) as comment
        from pg_class r join pg_attribute a on a.attrelid = r.oid and a.attnum > 0
        left join says o on o.relation = r.relname and o.name = a.attname left join says s on s.relation = '' and s.name = a.attname
        where r.relnamespace = 'dipwell'::regnamespace and r.relkind in ('r', 'p', 'v', 'c') and coalesce(o.comment, s.comment) is not null
    loop
        execute format('comment on column %s.%I is %L', c.relation, c.name, c.comment);
    end loop;
end $$;
