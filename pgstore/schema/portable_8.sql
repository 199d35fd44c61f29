-- Plans, parents, holds and overrides, as 0008_plans.sql. For new tables and those of
-- version 7 and before.
alter table dipwell.limits add column if not exists plans text;

alter table dipwell.limits add column if not exists parent text;

alter table dipwell.limits add column if not exists parts bigint;

alter table dipwell.limits add column if not exists ttl_us bigint;

alter table dipwell.limits add column if not exists on_expire text;

alter table dipwell.limits add column if not exists overridden boolean;

alter table dipwell.versions add column if not exists settings text;
