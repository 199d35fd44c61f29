-- Plans, parents, holds and overrides of limits. Null is the default.
alter table dipwell.limits
    add column plans      text,            -- as Plans.String writes them
    add column parent     text,
    add column parts      bigint,
    add column ttl_us     bigint,          -- 0: the longest there is
    add column on_expire  text,
    add column overridden boolean;         -- keys may have overrides; null: none ever had one
-- The settings of the limit at each version, from which plans and overrides of the
-- version are compiled; null for versions of before.
alter table dipwell.versions add column settings text;
