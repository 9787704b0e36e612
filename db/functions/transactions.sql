-- Transactions: publishes and acks, all or nothing.

-- Publishes and acks, all or nothing. Out as gapless.append_messages gives it for one request, and `stale`: which
-- receipts (1-based) hold no lease; then nothing was done.
create or replace function gapless.transact_messages(
    p_subscriptions integer[], p_messages bigint[], p_leases bigint[],
    p_namespaces integer[], p_names text[], p_create boolean,
    p_request_namespaces integer[], p_keys text[], p_fingerprints bytea[], p_expected bigint[],
    p_expected_channel integer[],
    p_request integer[], p_channel integer[], p_types text[], p_message_keys text[], p_data text[],
    p_binary bytea[], p_headers text[], p_senders text[], p_ttls double precision[],
    p_changes json[], p_versions bigint[], p_moderates boolean[],
    out ids bigint[], out seqs bigint[], out channel_ids bigint[], out last_ids bigint[],
    out last_seqs bigint[], out statuses smallint[], out answers json, out appended_at timestamptz,
    out expires_at timestamptz[], out stale integer[], out fences integer
) language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    outcomes smallint[];
begin
    perform gapless_internal.lock_subscriptions(p_subscriptions);
    if cardinality(p_request) > 0 then
        select a.* into ids, seqs, channel_ids, last_ids, last_seqs, statuses, answers, appended_at, expires_at, fences
        from gapless.append_messages(
            p_namespaces, p_names, p_create, p_request_namespaces, p_keys, p_fingerprints, p_expected,
            p_expected_channel, p_request, p_channel, p_types, p_message_keys, p_data, p_binary, p_headers, p_senders,
            p_ttls, p_changes, p_versions, p_moderates) a;
        if statuses[1] > 0 then
            -- Refused, or already done under this key: either way there is nothing to ack now.
            return;
        end if;
    end if;
    if cardinality(p_messages) > 0 then
        outcomes := gapless.ack(p_subscriptions, p_messages, p_leases);
        stale := array(select o.ord::integer from unnest(outcomes) with ordinality as o (status, ord)
                       where o.status > 0 order by o.ord);
        if stale <> '{}' then
            raise exception 'stale receipts' using errcode = 'GL409', detail = array_to_json(stale)::text;
        end if;
    end if;
end $$;

-- The same without changes, for workers of the version before.
create or replace function gapless.transact(
    p_subscriptions integer[], p_messages bigint[], p_leases bigint[],
    p_namespaces integer[], p_names text[], p_create boolean,
    p_request_namespaces integer[], p_keys text[], p_fingerprints bytea[], p_expected bigint[],
    p_expected_channel integer[],
    p_request integer[], p_channel integer[], p_types text[], p_message_keys text[], p_data text[],
    p_binary bytea[], p_headers text[], p_senders text[], p_ttls double precision[],
    out ids bigint[], out seqs bigint[], out channel_ids bigint[], out last_ids bigint[],
    out last_seqs bigint[], out statuses smallint[], out answers json, out appended_at timestamptz,
    out expires_at timestamptz[], out stale integer[], out fences integer
) language sql security definer set search_path = pg_catalog, pg_temp as $$
    select * from gapless.transact_messages(
        p_subscriptions, p_messages, p_leases, p_namespaces, p_names, p_create, p_request_namespaces, p_keys,
        p_fingerprints, p_expected, p_expected_channel, p_request, p_channel, p_types, p_message_keys, p_data, p_binary,
        p_headers, p_senders, p_ttls, null, null, null)
$$;
