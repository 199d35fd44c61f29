-- What tables, views and types hold. A function's comment is beside it.
comment on schema dipwell is 'Rate limits: functions, tables and views for everybody who may use them.';
comment on schema dipwell_internal is 'Helpers of schema dipwell, which may change with any version: do not call them.';

comment on table dipwell.limits is 'The limits: what was defined, and the numbers of the present version that a take needs.';
comment on column dipwell.limits.id is 'By which other tables name the limit. A name that is dropped and defined again has a new one.';
comment on column dipwell.limits.name is 'Printable ASCII, at most 128 bytes.';
comment on column dipwell.limits.algorithm is 'token_bucket, fixed_window, interval or leaky_bucket.';
comment on column dipwell.limits.rate is 'Tokens that come back in each per.';
comment on column dipwell.limits.per is 'The period of rate, as in 250ms, 1m, 3mo.';
comment on column dipwell.limits.burst is 'Capacity in tokens; null: the rate.';
comment on column dipwell.limits.max_debt is 'Tokens that a reserve may take beyond the burst; null: one burst, -1: unlimited.';
comment on column dipwell.limits.max_charge is 'The largest charge, in tokens; null: ten bursts.';
comment on column dipwell.limits.start is 'Where windows and intervals begin: an offset such as 0s, or a wall clock such as 06:00 Europe/Rome; null: spread by key.';
comment on column dipwell.limits.on_change is 'How used tokens are converted into the next version: keep, proportional or reset.';
comment on column dipwell.limits.mode is 'enforce or shadow.';
comment on column dipwell.limits.auth is 'Whether services answer /v1/auth for it.';
comment on column dipwell.limits.retry_jitter is 'Percent by which services lengthen Retry-After at most.';
comment on column dipwell.limits.on_store_error is 'What services and programs answer when the database cannot: open, closed or local.';
comment on column dipwell.limits.timeout_us is 'How long a call may take, in µs; 0: as long as its caller says.';
comment on column dipwell.limits.list_keys is 'Whether stores that keep no key texts shall keep them for this limit. This one always has them.';
comment on column dipwell.limits.owner is 'Who defined it and may change it: code, api, sql, rls, file or file:NAME. A file''s is followed by its revision and its digest.';
comment on column dipwell.limits.version is 'The present version''s number.';
comment on column dipwell.limits.unit is 'Of the present version: units in a token.';
comment on column dipwell.limits.every is 'Of the present version: µs between ticks; 0: a calendar''s.';
comment on column dipwell.limits.add is 'Of the present version: units that come back at a tick.';
comment on column dipwell.limits.cap is 'Of the present version: units that takes may use.';
comment on column dipwell.limits.grid is 'A tick before any instant that can be counted, in µs.';
comment on column dipwell.limits.ticks is 'Ticks after which everything has come back.';
comment on column dipwell.limits.plain is 'Whether the numbers in this row alone decide a take.';

comment on table dipwell.versions is 'Each rule that a bucket or a reservation may still be counted in, the present one included. Go twin: dipwell.Rule.';
comment on column dipwell.versions.limit_id is 'limits.id.';
comment on column dipwell.versions.number is 'From 1.';
comment on column dipwell.versions.since is 'When it began, in µs since the Unix epoch; it ends where the next one begins.';
comment on column dipwell.versions.policy is 'How used tokens are converted on the way into this version: keep, proportional or reset.';
comment on column dipwell.versions.unit is 'Units in a token.';
comment on column dipwell.versions.every is 'µs between ticks; 0: a calendar''s.';
comment on column dipwell.versions.add is 'Units that come back at a tick.';
comment on column dipwell.versions.cap is 'Units that takes may use.';
comment on column dipwell.versions.origin is 'An instant of a tick, in µs; for a calendar, µs after each of its boundaries.';
comment on column dipwell.versions.burst is 'Capacity in tokens: cap / unit.';
comment on column dipwell.versions.debt is 'Units that a reserve may use beyond cap.';
comment on column dipwell.versions.most is 'The largest reserve that could ever be granted, in tokens.';
comment on column dipwell.versions.max_charge is 'The largest charge, in tokens.';
comment on column dipwell.versions.max_used is 'Units at which a bucket''s used stops growing.';
comment on column dipwell.versions.leaky is 'Whether take means reserve.';
comment on column dipwell.versions.spread is 'Whether the origin depends on the key.';
comment on column dipwell.versions.months is 'Months in a calendar''s unit, else 0.';
comment on column dipwell.versions.days is '1 or 7 when a calendar''s unit is days, else 0.';
comment on column dipwell.versions.clock is 'Seconds after local midnight at which a calendar''s unit begins.';
comment on column dipwell.versions.zone is 'The calendar''s IANA time zone; empty without a calendar.';
comment on column dipwell.versions.per is 'limits.per as it was.';
comment on column dipwell.versions.start is 'limits.start as it was.';

comment on table dipwell.buckets is 'One row for each key in use. A missing row is a full bucket.';
comment on column dipwell.buckets.used is 'Units taken and not yet given back, at ts.';
comment on column dipwell.buckets.ts is 'µs since the Unix epoch, on this server''s clock.';
comment on column dipwell.buckets.limit_id is 'limits.id.';
comment on column dipwell.buckets.version is 'The version under which used and ts are counted.';
comment on column dipwell.buckets.key is 'The caller''s key; empty: the limit''s one shared bucket.';

comment on table dipwell.reservations is 'What was taken ahead of time and can still be cancelled. One call has one id, over all of its keys.';
comment on column dipwell.reservations.id is 'What cancel takes.';
comment on column dipwell.reservations.limit_id is 'limits.id.';
comment on column dipwell.reservations.key is 'buckets.key.';
comment on column dipwell.reservations.units is 'Units taken.';
comment on column dipwell.reservations.version is 'The version in which units are counted.';
comment on column dipwell.reservations.due is 'When the call may act, in µs since the Unix epoch; afterwards it cannot be cancelled.';

comment on table dipwell.revision is 'One row, whose number moves with each change of a limit, for programs that cannot listen.';
comment on column dipwell.revision.n is 'The number of changes.';

comment on table dipwell.migrations is 'The migrations that were applied; programs recognize the schema by the largest version.';
comment on column dipwell.migrations.version is 'The migration''s number.';
comment on column dipwell.migrations.name is 'What it did, in a word.';
comment on column dipwell.migrations.applied_at is 'When.';

comment on view dipwell.status is 'The buckets in tokens, as they are now.';
comment on column dipwell.status.limit_name is 'limits.name.';
comment on column dipwell.status.key is 'The caller''s key; null: the limit''s one shared bucket.';
comment on column dipwell.status.capacity is 'Tokens of a full bucket.';
comment on column dipwell.status.remaining is 'Whole tokens left.';
comment on column dipwell.status.full_at is 'When the bucket will be full if nobody comes.';

comment on type dipwell.decision is 'What a call about one key answers.';
comment on column dipwell.decision.allowed is 'The verdict; a refusal has changed nothing.';
comment on column dipwell.decision.remaining is 'Whole tokens left, after the call.';
comment on column dipwell.decision.retry_after is 'When the same call would succeed if nobody else came; null when allowed or never.';
comment on column dipwell.decision.reset_after is 'Until the bucket is full.';
comment on column dipwell.decision.granted is 'Tokens taken.';
comment on column dipwell.decision.delay is 'How long to wait before acting.';
comment on column dipwell.decision.never is 'Whether the cost is more than the limit could ever hold.';
comment on column dipwell.decision.reservation is 'For cancel, when delay is above 0.';
