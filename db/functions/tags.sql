-- Tags of definitions, and changes that are made only if the definition has a given tag.

-- A tag for a definition: each change gives another one, and a change that is taken back gives the old one
-- again. It is a keyed hash, because the definition holds the secret of a webhook, which must not be found by
-- guessing.
create or replace function gapless_internal.tag_of(p_definition text) returns text
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select left(encode(sha256(l.hint_secret || convert_to(p_definition, 'UTF8')), 'hex'), 32) from gapless.log l
$$;

-- The tag of a subscription: of its own settings, without policies. One that is created again has another
-- tag.
create or replace function gapless.subscription_tag(s gapless.subscriptions) returns text
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select gapless_internal.tag_of(row(s.id, s.channels, s.start, s.own, s.paused)::text)
$$;

-- The tag of a policy: of all of it.
create or replace function gapless.policy_tag(p gapless.policies) returns text
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select gapless_internal.tag_of(row(p.name, p.pattern, p.applies_to, p.priority, p.definition)::text)
$$;

-- The tag of a channel: of its own settings too.
create or replace function gapless.channel_tag(c gapless.channels) returns text
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select gapless_internal.tag_of(row(c.id, c.own)::text)
$$;

-- Raises GL412.
create or replace function gapless_internal.refuse_tag(p_what text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    raise exception '% is not what If-Match names', p_what using errcode = 'GL412';
end $$;

-- Takes the locks that a change of this subscription needs, and raises GL412 if its tag is none of these
-- ({*}: any; null: no tag is checked, and nothing is locked). After that it cannot change until the
-- transaction ends. Returns whether it exists.
create or replace function gapless.expect_subscription(p_namespace_id integer, p_name text, p_tags text[])
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    found_id constant integer := (select x.id from gapless.subscriptions x
                                  where x.namespace_id = p_namespace_id and x.name = p_name);
    s gapless.subscriptions;
begin
    if p_tags is null then
        return true;
    end if;
    perform gapless_internal.lock_subscriptions(array[found_id]);
    perform gapless_internal.share_definitions();
    select * into s from gapless.subscriptions x where x.id = found_id for no key update;
    if not found then
        return false;
    end if;
    if p_tags <> '{*}' and gapless.subscription_tag(s) <> all (p_tags) then
        perform gapless_internal.refuse_tag('the definition of subscription ' || p_name);
    end if;
    return true;
end $$;

-- The same for a policy; p_absent: it must not exist.
create or replace function gapless.expect_policy(
    p_namespace_id integer, p_name text, p_tags text[], p_absent boolean
) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    p gapless.policies;
begin
    if p_tags is null and not p_absent then
        return true;
    end if;
    perform gapless.lock_definitions();
    select * into p from gapless.policies x where x.namespace_id = p_namespace_id and x.name = p_name;
    if p_absent and p.name is not null then
        raise exception 'policy % is there already', p_name using errcode = 'GL412';
    end if;
    if p_tags is not null and p.name is not null and p_tags <> '{*}' and gapless.policy_tag(p) <> all (p_tags) then
        perform gapless_internal.refuse_tag('policy ' || p_name);
    end if;
    return p_absent or p.name is not null;
end $$;

-- The same for a channel, which no session can delete from then on.
create or replace function gapless_internal.expect_channel(p_namespace_id integer, p_name text, p_tags text[]) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    c gapless.channels;
begin
    if p_tags is null then
        return true;
    end if;
    -- In the order of gapless.set_channel.
    perform gapless_internal.share_definitions();
    perform gapless_internal.make_channels();
    select * into c from gapless.channels x
    where x.namespace_id = p_namespace_id and x.name = p_name for no key update;
    if not found then
        return false;
    end if;
    if p_tags <> '{*}' and gapless.channel_tag(c) <> all (p_tags) then
        perform gapless_internal.refuse_tag('channel ' || p_name);
    end if;
    return true;
end $$;

-- As gapless.set_channel, if the channel has one of these tags; p_absent: it must not exist. A null id: it
-- does not exist.
create or replace function gapless.set_channel_if(
    p_namespace_id integer, p_name text, p_settings jsonb, p_patch boolean, p_tags text[], p_absent boolean,
    out channel_id bigint, out made boolean
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    made := false;
    if gapless_internal.expect_channel(p_namespace_id, p_name, p_tags) then
        select s.channel_id, s.made into channel_id, made
        from gapless.set_channel(p_namespace_id, p_name, p_settings, p_patch) s;
    end if;
    -- Checked afterwards: a publisher may create it at any moment before.
    if p_absent and not made then
        raise exception 'channel % is there already', p_name using errcode = 'GL412';
    end if;
end $$;

-- As gapless.delete_channel, if the channel has one of these tags.
create or replace function gapless.delete_channel_if(p_namespace_id integer, p_name text, p_tags text[]) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
set lock_timeout = '1s' as $$
begin
    perform gapless_internal.needs_fresh_snapshots();
    -- Exclusive from the beginning: two sessions that upgrade a shared lock would wait for one another.
    lock table gapless.publishing_lock in exclusive mode;
    if gapless_internal.expect_channel(p_namespace_id, p_name, p_tags) then
        return gapless.delete_channel(p_namespace_id, p_name);
    end if;
    return false;
end $$;
