-- Tags of definitions, and changes that hold only for the definition that somebody has seen.

-- What a definition is, in short: another one with each change, and the same again where a change is taken back. It is
-- keyed, for the secret of a webhook is in it, and nobody is to find that out by trying.
create or replace function gapless.tag_of(p_definition text) returns text
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select left(encode(sha256(l.hint_secret || convert_to(p_definition, 'UTF8')), 'hex'), 32) from gapless.log l
$$;

-- Of a subscription: its own settings, not those that policies give it. One that is made anew has another.
create or replace function gapless.subscription_tag(s gapless.subscriptions) returns text
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select gapless.tag_of(row(s.id, s.channels, s.start, s.own, s.paused)::text)
$$;

create or replace function gapless.policy_tag(p gapless.policies) returns text
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select gapless.tag_of(row(p.name, p.pattern, p.applies_to, p.priority, p.definition)::text)
$$;

create or replace function gapless.refuse_tag(p_what text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    raise exception '% is not what If-Match names', p_what using errcode = 'GL412';
end $$;

-- Takes the locks that a change of this subscription needs, and raises GL412 where its tag is none of these ({*}: any;
-- null: nothing is asked, and nothing locked). From then on it stays what it is until the transaction ends. Whether it
-- is there.
create or replace function gapless.expect_subscription(p_namespace_id integer, p_name text, p_tags text[]) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    found_id constant integer := (select x.id from gapless.subscriptions x
                                  where x.namespace_id = p_namespace_id and x.name = p_name);
    s gapless.subscriptions;
begin
    if p_tags is null then
        return true;
    end if;
    perform gapless.lock_subscriptions(array[found_id]);
    perform gapless.share_definitions();
    select * into s from gapless.subscriptions x where x.id = found_id for no key update;
    if not found then
        return false;
    end if;
    if p_tags <> '{*}' and gapless.subscription_tag(s) <> all (p_tags) then
        perform gapless.refuse_tag('the definition of subscription ' || p_name);
    end if;
    return true;
end $$;

-- The same of a policy; p_absent: it must not be there.
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
        perform gapless.refuse_tag('policy ' || p_name);
    end if;
    return p_absent or p.name is not null;
end $$;
