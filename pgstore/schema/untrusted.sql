    -- What lets other roles than the one that migrates run code with its rights: whoever owns
    -- a schema, or an object that a function uses, may replace it. always is false if only another
    -- role would have to migrate.
    with spaces as (
        select n.oid, n.nspname, n.nspowner, n.nspacl from pg_namespace n where n.nspname in ('dipwell', 'dipwell_internal')
    ), boss as (
        select s.nspowner as oid from spaces s order by s.nspname limit 1
    ), objects as (
        select 'pg_class'::regclass as class, c.oid, c.relowner as owner, c.relnamespace as space from pg_class c
        union all select 'pg_proc'::regclass, p.oid, p.proowner, p.pronamespace from pg_proc p
        union all select 'pg_type'::regclass, t.oid, t.typowner, t.typnamespace from pg_type t
        union all select 'pg_operator'::regclass, o.oid, o.oprowner, o.oprnamespace from pg_operator o
        union all select 'pg_collation'::regclass, c.oid, c.collowner, c.collnamespace from pg_collation c
    )
    select true as always, format('schema %I belongs to %I', s.nspname, pg_get_userbyid(s.nspowner)) as what
        from spaces s, boss b where s.nspowner <> b.oid
    union all
    (select true, format('%s belongs to %I', pg_describe_object(o.class, o.oid, 0), pg_get_userbyid(o.owner))
        from objects o join spaces s on s.oid = o.space, boss b where o.owner <> b.oid order by o.class, o.oid limit 5)
    union all
    select true, format('%s may create objects in schema %I', case a.grantee when 0 then 'everybody' else quote_ident(pg_get_userbyid(a.grantee)) end, s.nspname)
        from spaces s, aclexplode(s.nspacl) a where a.privilege_type = 'CREATE' and a.grantee <> s.nspowner
    union all
    (select true, format('%s may add triggers to %s', case a.grantee when 0 then 'everybody' else quote_ident(pg_get_userbyid(a.grantee)) end, c.oid::regclass)
        from pg_class c join spaces s on s.oid = c.relnamespace, aclexplode(c.relacl) a where a.privilege_type = 'TRIGGER' and a.grantee <> c.relowner order by c.oid limit 5)
    union all
    select false, format('schema dipwell belongs to %I, and not to %I', pg_get_userbyid(b.oid), current_user)
        from boss b where b.oid <> (select r.oid from pg_roles r where r.rolname = current_user)
