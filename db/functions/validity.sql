-- Rules for a valid message, for all publishers. app/message/limits.py and app/message/json.py have the same rules
-- in Python for HTTP; tests/db/test_validity.py compares the two. A text with a backslash is written E'...': what
-- a plain one means depends on the session's standard_conforming_strings.

-- Whether a text contains a control character: these break lines in streams, logs and terminals.
create or replace function gapless_internal.has_control(p_text text) returns boolean
language sql immutable as $$
    select p_text ~ E'[\\x01-\\x1f\\x7f-\\x9f]'
$$;

-- Whether a text contains no line break.
create or replace function gapless_internal.is_one_line(p_text text) returns boolean
language sql immutable as $$
    select strpos(p_text, E'\n') = 0 and strpos(p_text, E'\r') = 0
$$;

-- Whether it can be the type of a message.
create or replace function gapless_internal.is_type(p_text text) returns boolean
language sql immutable as $$
    select p_text = 'message' or length(p_text) between 1 and 128 and not gapless_internal.has_control(p_text)
$$;

-- Whether it can be the key of a message.
create or replace function gapless_internal.is_key(p_text text) returns boolean
language sql immutable as $$
    select length(p_text) <= 255 and not gapless_internal.has_control(p_text)
$$;

-- Whether it can be the name of a channel: tokens joined by dots.
create or replace function gapless_internal.is_channel_name(p_text text) returns boolean
language sql immutable as $$
    select length(p_text) <= 255 and p_text ~ '^[A-Za-z0-9_~:@-]+([.][A-Za-z0-9_~:@-]+)*$'
$$;

-- Whether a message breaks the rules that every reader relies on: a message is written on one line
-- everywhere. This check is cheap enough for each append; the full check (gapless_internal.flaw, or the same
-- in Python) comes before.
create or replace function gapless_internal.is_misshapen(p_type text, p_key text, p_data text, p_headers text)
returns boolean
language sql immutable as $$
    select not gapless_internal.is_type(p_type) or not gapless_internal.is_key(p_key)
           or not gapless_internal.is_one_line(p_data) or not gapless_internal.is_one_line(p_headers)
$$;

-- The size of a message for limits in bytes: its payload, and the part of its headers that exceeds the
-- longest possible headers without a journey.
create or replace function gapless_internal.size_of(p_data text, p_binary bytea, p_headers text) returns integer
language sql immutable as $$
    select coalesce(octet_length(p_data), octet_length(p_binary))
           + greatest(0, coalesce(octet_length(p_headers), 0) - 65536)
$$;

-- Whether a JSON number, as it is written, means the same to every reader: integers have 64 bits, others
-- double precision, and jsonb can hold it.
create or replace function gapless_internal.is_number(p_number text) returns boolean
language plpgsql immutable security definer set search_path = pg_catalog, pg_temp as $$
declare
    -- Larger numbers are rounded to infinity in double precision.
    highest constant numeric := power(2::numeric, 1024) - power(2::numeric, 970);
    mantissa constant text := substring(p_number from '^-?([0-9.]+)');
    exponent constant text := substring(p_number from '[eE](.*)$');
begin
    if length(p_number) > 15000 then
        return false;
    end if;
    if exponent is null and strpos(p_number, '.') = 0 then
        return length(p_number) <= 20 and p_number::numeric between -9223372036854775808 and 18446744073709551615;
    end if;
    if exponent ~ '^-[0-9]{3}' then
        if length(ltrim(exponent, '-0')) > 3 or exponent::integer <= -400 then
            return false;
        end if;
        -- A number too small for double precision is an error, unless it is exactly 0.
        perform p_number::double precision;
        return true;
    end if;
    if mantissa !~ '[1-9]' then
        return true;
    end if;
    return length(ltrim(exponent, '+-0')) < 6 is not false and abs(p_number::numeric) < highest;
exception when numeric_value_out_of_range then
    return false;
end $$;

-- Before Postgres 16 there is no cheap test for JSON that needs no closer look: there, all of it gets one.
do $$
declare
    told constant text := case when current_setting('server_version_num')::integer >= 160000
                               then 'p_text is json with unique keys' else 'false' end;
begin
    execute format($function$
        -- Whether a text is JSON in which nothing needs a closer look.
        create or replace function gapless_internal.is_plain_json(p_text text) returns boolean
        language sql immutable as $body$
            -- The order matters: reading JSON that is nested too deeply raises an error of its own.
            select case when 2 * length(p_text) - length(replace(p_text, '[', ''))
                             - length(replace(p_text, '{', '')) > 32
                             or p_text ~ E'\\\\u(0000|[dD][89a-fA-F])|[0-9]{19}|[0-9][eE][-+]?[0-9]{3}'
                        then false else %s end
        $body$ $function$, told);
end $$;

-- What is wrong with a JSON text; null: nothing.
create or replace function gapless_internal.json_flaw(p_text text) returns text
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    most_levels constant integer := 32;
    found record;
begin
    if gapless_internal.is_plain_json(p_text) then
        return null;
    end if;
    begin
        perform p_text::json;
    exception when invalid_text_representation then
        return 'is not JSON';
    when statement_too_complex then
        return format('is nested deeper than %s levels', most_levels);
    end;
    begin
        with recursive part (level, kind, value) as (
            select 1, json_typeof(p_text::json), p_text::json
            union all
            select p.level + 1, json_typeof(e.value), e.value
            from part p cross join lateral (
                select m.value from json_each(case when p.kind = 'object' then p.value else '{}' end) m
                union all
                select i.value from json_array_elements(case when p.kind = 'array' then p.value else '[]' end) i
            ) e
            where p.kind in ('object', 'array') and p.level <= most_levels
        )
        select coalesce(max(p.level) filter (where p.kind in ('object', 'array')), 0) as levels,
               bool_or(p.kind = 'object' and (select count(*) > count(distinct k) from json_object_keys(p.value) k))
                   as repeated,
               bool_and(p.kind <> 'number' or gapless_internal.is_number(p.value::text)) as numbers,
               -- Reading each string as a text raises an error for characters that do not exist.
               count(case when p.kind = 'string' then p.value #>> '{}' end) as strings
        into found from part p;
    exception when data_exception then
        return E'holds \\u0000 or half of a surrogate pair';
    end;
    return case when found.levels > most_levels then format('is nested deeper than %s levels', most_levels)
                when found.repeated then 'has the same key twice in one object'
                when not found.numbers
                then 'holds a number that does not fit: integers are of 64 bits, others of double precision' end;
end $$;

-- What is wrong with the headers of a message; null: nothing.
create or replace function gapless_internal.headers_flaw(p_headers text) returns text
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
declare
    -- The service's own headers: a publisher that passes a copy on keeps them, so they do not count.
    own constant text := 'gapless-journey';
    most_own constant integer := 1048576;
    flaw text;
    found record;
begin
    if p_headers is null or p_headers = '{}' then
        return null;
    end if;
    -- Each character may be escaped.
    if octet_length(p_headers) > 65536 + 8 * most_own then
        return 'takes more than 8192 bytes';
    end if;
    if not gapless_internal.is_one_line(p_headers) then
        return 'holds a line break';
    end if;
    flaw := gapless_internal.json_flaw(p_headers);
    if flaw is not null then
        return flaw;
    end if;
    if json_typeof(p_headers::json) <> 'object' then
        return 'is not an object';
    end if;
    if exists (select from json_each(p_headers::json) e where json_typeof(e.value) <> 'string') then
        return 'has a value that is not a string';
    end if;
    select count(*) filter (where e.key <> own) as entries,
           sum(octet_length(e.key) + octet_length(e.value)) filter (where e.key <> own) as bytes,
           sum(octet_length(e.key) + octet_length(e.value)) filter (where e.key = own) as own_bytes,
           bool_or(e.key = '') as unnamed,
           bool_or(gapless_internal.has_control(e.key) or gapless_internal.has_control(e.value)) as control
    into found from json_each_text(p_headers::json) e;
    return case when found.entries > 64 then 'has more than 64 entries'
                when found.bytes > 8192 then 'takes more than 8192 bytes'
                when found.own_bytes > most_own then format('takes more than %s bytes for %s', most_own, own)
                when found.unnamed then 'has an entry with an empty name'
                when found.control then 'must not contain control characters' end;
end $$;

-- What is wrong with a message, by its member; null: nothing. All SQL functions that publish call this.
create or replace function gapless_internal.flaw(
    p_channel text, p_type text, p_key text, p_data text, p_binary bytea, p_headers text, p_ttl double precision
) returns text
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
    return case
        when gapless_internal.is_channel_name(p_channel) is not true
        then 'channel: must be 1 to 255 characters: tokens of [A-Za-z0-9_~:@-] joined by dots'
        when gapless_internal.is_type(p_type) is not true
        then 'type: must be 1 to 128 characters, none of them a control character'
        when not gapless_internal.is_key(p_key)
        then 'key: must be at most 255 characters, none of them a control character'
        when p_ttl is not null and not (p_ttl > 0 and p_ttl <= 315360000)
        then 'ttl: must be above 0 and at most ten years, in seconds'
        when (p_data is null) = (p_binary is null) then 'data: is required'
        when coalesce(octet_length(p_data), octet_length(p_binary)) > 1048576 then 'data: is longer than 1048576 bytes'
        when not gapless_internal.is_one_line(p_data) then 'data: holds a line break'
        when gapless_internal.json_flaw(p_data) is not null then 'data: ' || gapless_internal.json_flaw(p_data)
        when gapless_internal.headers_flaw(p_headers) is not null
        then 'headers: ' || gapless_internal.headers_flaw(p_headers) end;
end $$;
