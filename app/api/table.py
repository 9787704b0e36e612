"""The table of routes: the router, the checks of parameters, the OpenAPI document and the reference use it.

A route is a row: method, path, handler and answers, and its parameters, body and headers if it has some. Rows
are grouped under the headings of the documents.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import Meta

from app.api import (
    answers,
    channels,
    dead_letters,
    definitions,
    deliveries,
    history,
    keys,
    lists,
    markers,
    namespaces,
    operate,
    policies,
    presence,
    publish,
    scheduled,
    subscriptions,
    tickets,
    transactions,
    views,
)
from app.api.channels import MERGE_PATCH, ChannelRequest
from app.api.definitions import DefinitionsDocument
from app.api.history import HISTORY_CHANGED
from app.api.policies import PolicyDefinition
from app.api.route import Body, Header, Names, Needs, Returns, Route, json_body, returns
from app.api.subscriptions import BindRequest, SeekRequest, SubscriptionChange, SubscriptionDefinition
from app.faces.sse.consume import ConsumeQuery, consume
from app.faces.sse.query import SubscribeQuery
from app.faces.sse.subscribe import subscribe
from app.faces.websocket.emulation import (
    EmulatedConnectQuery,
    EmulationRequest,
    FirstCommand,
    connect_http_stream,
    connect_sse,
    emulation,
)
from app.faces.websocket.session import ACTIONS as CLIENT_ACTIONS
from app.faces.websocket.sessions import websocket
from app.http import parameters
from app.http.accept import CLOUDEVENT, CLOUDEVENTS, NDJSON
from app.http.request import JSON
from app.message import limits, settlement, tags
from app.message.head import MAX_IDEMPOTENCY_KEY_CHARACTERS, MAX_SEQ
from app.message.publish import BatchRequest, MessageToPublish
from subscriptions.domain.principal import Action, Noun

_Event = Annotated[dict[str, Any], Meta(description="A CloudEvent.")]
_Events = Annotated[
    list[_Event], Meta(description="CloudEvents.", extra_json_schema={"maxItems": limits.MAX_MESSAGES})
]
_STREAM: Final = "text/event-stream"
_SENT: Final = {"type": "string"}

_IDEMPOTENCY_KEY: Final = Header(
    "Idempotency-Key",
    "For 24 hours, a request with the same key gets the first answer again.",
    {**_SENT, "minLength": 1, "maxLength": MAX_IDEMPOTENCY_KEY_CHARACTERS},
)
_EXPECTED_LAST_SEQ: Final = Header(
    "Expected-Last-Seq",
    "Store only if this is the channel's last seq.",
    {"type": "integer", "minimum": 0, "maximum": MAX_SEQ},
)
_EXPECTED_VERSION: Final = Header(
    "Expected-Version",
    "Store only if the target was changed by this message last; its own id: by none.",
    {"type": "integer", "minimum": 0, "maximum": MAX_SEQ},
)
_LAST_EVENT_ID: Final = Header(
    "Last-Event-ID",
    "The last id that was received; it overrides the query.",
    {**_SENT, "pattern": r"^\d{1,16}$", "maxLength": 16},
)
_TAGS: Final = {**_SENT, "maxLength": tags.MAX_CHARACTERS}
_IF_MATCH: Final = Header("If-Match", "Change it only if it has one of these tags; `*`: any.", _TAGS)
_IF_NONE_MATCH: Final = Header("If-None-Match", "`*`: create it only if it does not exist.", _TAGS)
_ETAG: Final = Header("ETag", "The definition's tag.", _SENT)
_REPLAYED: Final = Header("Idempotent-Replayed", "`true`: the answer to an earlier request.", _SENT)
_LOST: Final = Header(
    HISTORY_CHANGED, "`first-last`: ids that may have been seen and are not in the log any more.", _SENT
)

_DELETED: Final = {204: Returns("Done.")}
_CHANNEL: Final = {200: returns("The channel.", channels.Channel, _ETAG)}
_CHANNEL_BODY: Final = Body(
    {JSON: ChannelRequest, MERGE_PATCH: ChannelRequest},
    required=False,
    example={"retention": {"max_age": 86400}},
)
_SUBSCRIPTION: Final = {200: returns("The subscription.", subscriptions.Subscription, _ETAG)}
_POLICY: Final = {200: returns("The policy.", policies.Policy, _ETAG)}
_RESULTS: Final = {200: returns("One result per receipt, in order.", deliveries.Results)}
_BINDING: Final = json_body(BindRequest, {"channels": ["refunds.*"]})
_RECEIPT: Final = "AQAAAAAAAAABAAAAAAAAAAQAAAAAAAAAAQAAAAAAAAAATVwlOxAsNhF5FEv5"
_ACK: Final = json_body(settlement.AckRequest, {"receipts": [_RECEIPT]})
_NACK: Final = json_body(settlement.NackRequest, {"receipts": [_RECEIPT], "delay": 5, "reason": "timed out"})
_RELEASE: Final = json_body(settlement.ReleaseRequest, {"receipts": [_RECEIPT], "delay": 5})
_EXTEND: Final = json_body(settlement.ExtendRequest, {"receipts": [_RECEIPT], "ack_wait": 60})

_ACCEPTED: Final = returns(
    "Scheduled; or, if ephemeral, sent to live subscribers and not stored.",
    publish.ScheduledAt | publish.ScheduledAtAll | publish.EphemeralSent,
    _REPLAYED,
)
_Several = Annotated[list[MessageToPublish], Meta(min_length=1, max_length=limits.MAX_MESSAGES)]
_PUBLISHED: Final = Body(
    {JSON: MessageToPublish | _Several, CLOUDEVENT: _Event, CLOUDEVENTS: _Events},
    example={"data": {"text": "hello"}, "type": "note", "key": "user-7"},
)
_TRANSACTION: Final = json_body(
    transactions.TransactionRequest,
    {
        "publish": [{"channel": "invoices", "data": {"order": 7}}],
        "ack": [{"subscription": "billing", "receipts": [_RECEIPT]}],
    },
)
_HISTORY: Final = Returns(
    "A page, or a stream of lines.",
    {JSON: history.MessagePage | views.OriginalPage, NDJSON: str, CLOUDEVENTS: _Events},
    (_LOST,),
)
_MARKERS: Final = json_body(
    markers.MarkersRequest,
    {"markers": [{"channel": "chat.lobby", "name": "read", "id": 1042, "user": "ann"}]},
)
_POLICY_BODY: Final = json_body(
    PolicyDefinition, {"pattern": ">", "applies_to": "subscriptions", "definition": {"max_deliver": 8}}
)
_DOCUMENT: Final = json_body(
    DefinitionsDocument,
    {"version": 1, "subscriptions": [{"name": "billing", "channels": ["orders.>"]}]},
    required=False,
)

_CHANNEL_ONLY: Final = (Noun.CHANNEL,)
_SUBSCRIPTION_ONLY: Final = (Noun.SUBSCRIPTION,)
_PUBLISH: Final = Needs((Action.PUBLISH, Action.MODERATE), Names.IN_PATH, _CHANNEL_ONLY)
_PUBLISH_ASKED: Final = Needs((Action.PUBLISH, Action.MODERATE), Names.ASKED, _CHANNEL_ONLY)
_TRANSACT: Final = Needs((Action.PUBLISH, Action.MODERATE, Action.CONSUME), Names.ASKED)
_READ: Final = Needs((Action.SUBSCRIBE,), Names.IN_PATH, _CHANNEL_ONLY)
_READ_ASKED: Final = Needs((Action.SUBSCRIBE,), Names.ASKED, _CHANNEL_ONLY)
_MARK: Final = Needs((Action.SUBSCRIBE, Action.MODERATE), Names.IN_PATH, _CHANNEL_ONLY)
_MARK_ASKED: Final = Needs((Action.SUBSCRIBE, Action.MODERATE), Names.ASKED, _CHANNEL_ONLY)
_CLIENT: Final = Needs(CLIENT_ACTIONS, Names.ASKED, later=True)
_CONSUME: Final = Needs((Action.CONSUME,), Names.IN_PATH, _SUBSCRIPTION_ONLY)
_CONSUME_ASKED: Final = Needs((Action.CONSUME,), Names.ASKED, _SUBSCRIPTION_ONLY)
_SEE: Final = Needs((Action.MANAGE, Action.CONSUME), Names.IN_PATH, _SUBSCRIPTION_ONLY)
_MANAGE: Final = Needs((Action.MANAGE,), Names.IN_PATH, _SUBSCRIPTION_ONLY)
_LIST_SUBSCRIPTIONS: Final = Needs((Action.MANAGE, Action.CONSUME), Names.ASKED, _SUBSCRIPTION_ONLY)
_MANAGE_CHANNEL: Final = Needs((Action.MANAGE,), Names.IN_PATH, _CHANNEL_ONLY)
_LIST_CHANNELS: Final = Needs((Action.MANAGE,), Names.ASKED, _CHANNEL_ONLY)
_MANAGE_DEAD: Final = Needs((Action.MANAGE,), Names.ASKED, _SUBSCRIPTION_ONLY)
_MANAGE_LATER: Final = Needs((Action.MANAGE,), Names.ASKED, _CHANNEL_ONLY)
_MANAGE_ASKED: Final = Needs((Action.MANAGE,), Names.ASKED)
_ADMIN: Final = Needs((Action.ADMIN,))
_OPERATE: Final = Needs(operator=True)
_CREDENTIAL: Final = Needs(names=Names.NONE)
_NOTHING: Final = Needs()
_NAMESPACE: Final = {200: returns("The namespace.", namespaces.Namespace)}
_KEY_BODY: Final = json_body(
    keys.KeyRequest,
    {"name": "shop", "grants": [{"actions": ["publish", "subscribe"], "channels": ["orders.>"]}]},
)
_OPEN_STREAM: Final = Needs((Action.SUBSCRIBE, Action.CONSUME), Names.ASKED)
_TICKET_BODY: Final = json_body(tickets.TicketRequest, {"channels": ["chat.lobby"]}, required=False)

METRICS: Final = Route(
    "GET", "/metrics", operate.metrics, _ADMIN, {200: Returns("All metrics.", {"text/plain": str})}
)
WEBSOCKET: Final = Route(
    "GET",
    "/v1/ws",
    websocket,
    _CLIENT,
    {
        101: Returns("Frames of the client protocol, both ways."),
        426: Returns("This is no WebSocket.", {"application/problem+json": answers.Problem}),
    },
    face="websocket",
    takes_connection=True,
)

# fmt: off
TABLE: Final[dict[str, tuple[Route, ...]]] = {
    "publish": (
        Route("POST", "/v1/channels/{channel}/messages", publish.publish, _PUBLISH,
              {201: returns("Committed.", answers.Position | publish.Positions, _REPLAYED), 202: _ACCEPTED},
              body=_PUBLISHED, headers=(_IDEMPOTENCY_KEY, _EXPECTED_LAST_SEQ, _EXPECTED_VERSION),
              face="publish", hot=True),
        Route("POST", "/v1/messages", publish.publish_batch, _PUBLISH_ASKED,
              {201: returns("Committed.", publish.Positions, _REPLAYED)},
              body=json_body(BatchRequest, {"messages": [{"channel": "orders.eu", "data": 8}]}),
              headers=(_IDEMPOTENCY_KEY,), face="publish", hot=True),
        Route("POST", "/v1/transactions", transactions.transact, _TRANSACT,
              {201: returns("Committed.", transactions.Committed, _REPLAYED)},
              body=_TRANSACTION, headers=(_IDEMPOTENCY_KEY,), face="transaction"),
    ),
    "read": (
        Route("GET", "/v1/channels/{channel}/messages", history.list_messages, _READ,
              {200: _HISTORY}, query=history.HistoryQuery),
        Route("GET", "/v1/channels/{channel}/messages/{message_id}", history.get_message, _READ,
              {200: Returns("The message.", {JSON: answers.Message | views.Original, CLOUDEVENT: _Event})},
              query=views.MessageQuery),
        Route("GET", "/v1/channels/{channel}/messages/{message_id}/versions", views.list_versions, _READ,
              {200: returns("A page of messages.", views.ChangesPage)}, query=views.ChangesQuery),
        Route("GET", "/v1/channels/{channel}/messages/{message_id}/replies", views.list_replies, _READ,
              {200: returns("A page of messages.", views.ChangesPage)}, query=views.ChangesQuery),
        Route("GET", "/v1/subscribe", subscribe, _READ_ASKED,
              {200: Returns("Events: message (unnamed), ready, gap, ephemeral, presence, marker, goodbye.",
                            {_STREAM: str})},
              query=SubscribeQuery, headers=(_LAST_EVENT_ID,), face="sse", hot=True),
        WEBSOCKET,
        Route("POST", "/v1/ws/http_stream", connect_http_stream, _CLIENT,
              {200: Returns("Replies and pushes, one on each line.", {NDJSON: str})},
              body=json_body(FirstCommand, {"id": 1, "connect": {}}), face="websocket"),
        Route("GET", "/v1/ws/sse", connect_sse, _CLIENT,
              {200: Returns("Replies and pushes, as unnamed events.", {_STREAM: str})},
              query=EmulatedConnectQuery, face="websocket"),
        Route("POST", "/v1/ws/emulation", emulation, _CLIENT, {204: Returns("The commands were passed on.")},
              body=json_body(EmulationRequest, {"session": "k3J…", "node": "0" * 16, "data": "{}"})),
    ),
    "channels": (
        Route("GET", "/v1/channels", channels.list_channels, _LIST_CHANNELS,
              {200: returns("A page of channels.", channels.ChannelPage)}, query=lists.NamesQuery),
        Route("GET", "/v1/channels/{channel}", channels.get_channel, _MANAGE_CHANNEL, _CHANNEL),
        Route("PUT", "/v1/channels/{channel}", channels.put_channel, _MANAGE_CHANNEL,
              {**_CHANNEL, 201: returns("The channel was created.", channels.Channel, _ETAG)},
              body=_CHANNEL_BODY, headers=(_IF_MATCH, _IF_NONE_MATCH)),
        Route("PATCH", "/v1/channels/{channel}", channels.patch_channel, _MANAGE_CHANNEL,
              _CHANNEL, body=_CHANNEL_BODY,
              headers=(_IF_MATCH,)),
        Route("DELETE", "/v1/channels/{channel}", channels.delete_channel, _MANAGE_CHANNEL,
              _DELETED, headers=(_IF_MATCH,)),
        Route("GET", "/v1/channels/{channel}/presence", presence.list_presence, _READ,
              {200: returns("A page of clients.", presence.PresencePage)}, query=presence.PresenceQuery),
    ),
    "markers": (
        Route("PUT", "/v1/channels/{channel}/markers/{marker}", markers.put_marker, _MARK,
              {200: returns("The marker as it is now.", markers.Marker)},
              body=json_body(markers.MarkerRequest, {"id": 1042, "user": "ann"})),
        Route("GET", "/v1/channels/{channel}/markers/{marker}", markers.list_readers, _READ,
              {200: returns("A page of markers.", markers.ReadersPage)}, query=markers.ReadersQuery),
        Route("POST", "/v1/markers", markers.put_markers, _MARK_ASKED,
              {200: returns("The markers as they are now.", markers.Markers)}, body=_MARKERS),
        Route("GET", "/v1/markers", markers.list_markers, _MARK_ASKED,
              {200: returns("A page of channels.", markers.UnreadPage)}, query=markers.MarkersQuery),
    ),
    "subscriptions": (
        Route("GET", "/v1/subscriptions", subscriptions.list_subscriptions, _LIST_SUBSCRIPTIONS,
              {200: returns("A page of subscriptions.", subscriptions.SubscriptionPage)},
              query=lists.NamesQuery),
        Route("GET", "/v1/subscriptions/{name}", subscriptions.get_subscription, _SEE, _SUBSCRIPTION),
        Route("PUT", "/v1/subscriptions/{name}", subscriptions.put_subscription, _MANAGE, {**_SUBSCRIPTION,
               201: returns("The subscription was created.", subscriptions.Subscription, _ETAG)},
              body=json_body(SubscriptionDefinition, {"channels": ["orders.>"], "ack_wait": 60}),
              headers=(_IF_MATCH, _IF_NONE_MATCH)),
        Route("PATCH", "/v1/subscriptions/{name}", subscriptions.patch_subscription, _MANAGE, _SUBSCRIPTION,
              body=json_body(SubscriptionChange, {"ack_wait": None, "max_deliver": 3}, required=False),
              headers=(_IF_MATCH,)),
        Route("DELETE", "/v1/subscriptions/{name}", subscriptions.delete_subscription, _MANAGE, _DELETED,
              query=subscriptions.DeleteQuery, headers=(_IF_MATCH,)),
        Route("GET", "/v1/subscriptions/{name}/length", subscriptions.get_subscription_length, _SEE,
              {200: returns("How many.", subscriptions.SubscriptionLength)}),
        Route("GET", "/v1/subscriptions/{name}/messages", subscriptions.list_outstanding, _SEE,
              {200: returns("A page of messages.", subscriptions.OutstandingPage)},
              query=subscriptions.OutstandingQuery),
        Route("POST", "/v1/subscriptions/{name}/bind", subscriptions.bind_subscription, _MANAGE,
              _SUBSCRIPTION, body=_BINDING, headers=(_IF_MATCH,)),
        Route("POST", "/v1/subscriptions/{name}/unbind", subscriptions.unbind_subscription, _MANAGE,
              _SUBSCRIPTION, body=_BINDING, headers=(_IF_MATCH,)),
        Route("POST", "/v1/subscriptions/{name}/seek", subscriptions.seek_subscription, _MANAGE,
              _SUBSCRIPTION, query=parameters.DryRunQuery, body=json_body(SeekRequest, {"to": "earliest"}),
              headers=(_IF_MATCH,)),
        Route("POST", "/v1/subscriptions/{name}/purge", subscriptions.purge_subscription, _MANAGE,
              {200: returns("How many.", answers.Purged)}, headers=(_IF_MATCH,)),
        Route("POST", "/v1/subscriptions/{name}/pause", subscriptions.pause_subscription, _MANAGE,
              _SUBSCRIPTION, headers=(_IF_MATCH,)),
        Route("POST", "/v1/subscriptions/{name}/resume", subscriptions.resume_subscription, _MANAGE,
              _SUBSCRIPTION, headers=(_IF_MATCH,)),
    ),
    "deliveries": (
        Route("POST", "/v1/subscriptions/{name}/pull", deliveries.pull, _CONSUME,
              {200: returns("The leased messages; none if none came.", deliveries.Deliveries)},
              body=json_body(deliveries.PullRequest, {"max": 10, "wait": 20}, required=False), face="queue",
              hot=True),
        Route("GET", "/v1/subscriptions/{name}/consume", consume, _CONSUME,
              {200: Returns("Events: delivery, gap, goodbye.", {_STREAM: str})},
              query=ConsumeQuery, face="consume", hot=True),
        Route("POST", "/v1/subscriptions/{name}/ack", deliveries.ack, _CONSUME,
              _RESULTS, body=_ACK, face="queue",
              hot=True),
        Route("POST", "/v1/subscriptions/{name}/nack", deliveries.nack, _CONSUME,
              _RESULTS, body=_NACK, face="queue"),
        Route("POST", "/v1/subscriptions/{name}/release", deliveries.release, _CONSUME,
              _RESULTS, body=_RELEASE,
              face="queue"),
        Route("POST", "/v1/subscriptions/{name}/extend", deliveries.extend, _CONSUME, _RESULTS, body=_EXTEND,
              face="queue"),
        Route("POST", "/v1/ack", deliveries.ack, _CONSUME_ASKED,
              _RESULTS, body=_ACK, face="queue", operation="ack_any",
              hot=True),
        Route("POST", "/v1/nack", deliveries.nack, _CONSUME_ASKED,
              _RESULTS, body=_NACK, face="queue", operation="nack_any"),
        Route("POST", "/v1/release", deliveries.release, _CONSUME_ASKED,
              _RESULTS, body=_RELEASE, face="queue",
              operation="release_any"),
        Route("POST", "/v1/extend", deliveries.extend, _CONSUME_ASKED, _RESULTS, body=_EXTEND, face="queue",
              operation="extend_any"),
    ),
    "dead letters": (
        Route("GET", "/v1/dead-letters", dead_letters.list_dead_letters, _MANAGE_DEAD,
              {200: returns("A page of dead letters.", dead_letters.DeadLetterPage)},
              query=dead_letters.DeadLettersQuery),
        Route("GET", "/v1/dead-letters/{dead_letter_id}", dead_letters.get_dead_letter, _MANAGE_DEAD,
              {200: returns("The dead letter.", dead_letters.DeadLetter)}),
        Route("DELETE", "/v1/dead-letters/{dead_letter_id}", dead_letters.delete_dead_letter, _MANAGE_DEAD,
              _DELETED),
        Route("POST", "/v1/dead-letters/{dead_letter_id}/replay", dead_letters.replay_dead_letter,
              _MANAGE_DEAD, {200: returns("It was given back.", dead_letters.Replayed)}),
        Route("POST", "/v1/dead-letters/replay", dead_letters.replay_dead_letters, _MANAGE_DEAD,
              {200: returns("How many.", dead_letters.ReplayedAll)}, query=parameters.DryRunQuery,
              body=json_body(dead_letters.ReplayRequest, {"subscription": "billing", "max": 100})),
        Route("POST", "/v1/dead-letters/purge", dead_letters.purge_dead_letters, _MANAGE_DEAD,
              {200: returns("How many.", answers.Purged)},
              body=json_body(dead_letters.PurgeRequest, {"older_than": "30d"})),
    ),
    "policies": (
        Route("GET", "/v1/policies", policies.list_policies, _MANAGE_ASKED, {200: returns("All policies.",
              policies.Policies)}),
        Route("GET", "/v1/policies/{name}", policies.get_policy, _MANAGE_ASKED, _POLICY),
        Route("PUT", "/v1/policies/{name}", policies.put_policy, _MANAGE_ASKED,
              {**_POLICY, 201: returns("The policy was created.", policies.Policy, _ETAG)},
              body=_POLICY_BODY, headers=(_IF_MATCH, _IF_NONE_MATCH)),
        Route("DELETE", "/v1/policies/{name}", policies.delete_policy, _MANAGE_ASKED,
              _DELETED, headers=(_IF_MATCH,)),
    ),
    "definitions": (
        Route("GET", "/v1/definitions", definitions.export_definitions, _MANAGE_ASKED,
              {200: returns("The document.", DefinitionsDocument, _ETAG)}),
        Route("POST", "/v1/definitions", definitions.import_definitions, _MANAGE_ASKED,
              {200: returns("The changes made, or that would be made.", definitions.Changes)},
              query=parameters.DryRunQuery, body=_DOCUMENT, headers=(_IF_MATCH,)),
    ),
    "scheduled": (
        Route("GET", "/v1/scheduled", scheduled.list_scheduled, _MANAGE_LATER,
              {200: returns("A page of scheduled messages.", scheduled.ScheduledPage)},
              query=scheduled.ScheduledQuery),
        Route("GET", "/v1/scheduled/{scheduled_id}", scheduled.get_scheduled, _MANAGE_LATER,
              {200: returns("The message.", scheduled.Scheduled)}),
        Route("DELETE", "/v1/scheduled/{scheduled_id}", scheduled.cancel_scheduled, _MANAGE_LATER, _DELETED),
        Route("POST", "/v1/scheduled/{scheduled_id}/promote", scheduled.promote_scheduled, _MANAGE_LATER,
              {200: returns("It was published.", answers.Position)}),
    ),
    "credentials": (
        Route("GET", "/v1/whoami", keys.whoami, _CREDENTIAL, {200: returns("Who asks.", keys.Who)}),
        Route("POST", "/v1/tickets", tickets.create_ticket, _OPEN_STREAM,
              {201: returns("The ticket, for one stream.", tickets.Ticket)}, body=_TICKET_BODY),
        Route("GET", "/v1/keys", keys.list_keys, _ADMIN, {200: returns("All keys.", keys.Keys)}),
        Route("POST", "/v1/keys", keys.create_key, _ADMIN,
              {201: returns("The key, told once.", keys.NewKey)}, body=_KEY_BODY),
        Route("DELETE", "/v1/keys/{key}", keys.revoke_key, _ADMIN, _DELETED),
        Route("GET", "/v1/namespaces/{namespace}", namespaces.get_namespace, _OPERATE, _NAMESPACE),
        Route("PUT", "/v1/namespaces/{namespace}", namespaces.put_namespace, _OPERATE,
              {**_NAMESPACE, 201: returns("The namespace was made.", namespaces.Namespace)},
              body=json_body(namespaces.NamespaceRequest, {"limits": {"streams": 500}}, required=False)),
        Route("DELETE", "/v1/namespaces/{namespace}", namespaces.delete_namespace, _OPERATE, _DELETED),
    ),
    "operating": (
        Route("GET", "/healthz", operate.healthz, _NOTHING, {200: returns("It is alive.", operate.Alive)}),
        Route("GET", "/readyz", operate.readyz, _NOTHING, {200: returns("It serves.", operate.Ready)}),
        METRICS,
    ),
}
"""The routes under the headings of the documents."""
# fmt: on

ROUTES: Final = tuple(route for routes in TABLE.values() for route in routes)
