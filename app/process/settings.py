"""Settings. Flags of `serve` override `GAPLESS_*` variables, these a TOML file, and that the defaults."""

from __future__ import annotations

import os
from collections.abc import Iterable
from enum import StrEnum
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, ValidationInfo, field_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from app.http.browsers.names import allowed_host, allowed_origin
from app.http.local import is_loopback
from app.http.refusals import Network
from app.launch import CHECKOUT

POSTGRES_SCHEMES = ("postgresql", "postgres")
REDIS_SCHEMES = ("redis", "rediss", "unix")


class LogLevel(StrEnum):
    """How much is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Access(StrEnum):
    """Who may see a page."""

    AUTO = "auto"
    """Everybody until credentials are required, then who has one."""
    OPEN = "open"
    OFF = "off"


def _items(given: object) -> object:
    """The items of a list, which is written with commas in a variable and as a list in the file."""
    return [item for item in map(str.strip, given.split(",")) if item] if isinstance(given, str) else given


def _networks(given: object) -> object:
    """Networks, of which an address is one."""
    items = _items(given)
    try:
        return tuple(ip_network(str(item)) for item in items) if isinstance(items, list) else items
    except ValueError as error:
        raise ValueError(f"must be addresses or networks, as 127.0.0.1 or 10.0.0.0/8: {error}") from None


def _listed(items: Iterable[str]) -> str:
    return ",".join(items)


_List = tuple[str, ...]
_Hosts: TypeAlias = Annotated[
    _List,
    NoDecode,
    BeforeValidator(_items),
    AfterValidator(lambda names: tuple(map(allowed_host, names))),
    PlainSerializer(_listed),
]
_Origins: TypeAlias = Annotated[
    _List,
    NoDecode,
    BeforeValidator(_items),
    AfterValidator(lambda origins: tuple(map(allowed_origin, origins))),
    PlainSerializer(_listed),
]


_Networks: TypeAlias = Annotated[
    tuple[Network, ...],
    NoDecode,
    BeforeValidator(_networks),
    PlainSerializer(lambda networks: _listed(map(str, networks))),
]


class Settings(BaseSettings):
    """All settings of the service. The TOML file is the one that `GAPLESS_CONFIG` names, else `gapless.toml`
    in the working directory. Its keys are the names below."""

    model_config = SettingsConfigDict(env_prefix="GAPLESS_", extra="ignore")

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8080, ge=0, le=65535, description="Port to listen on; 0 picks a free one.")
    workers: int = Field(1, ge=1, le=256, description="Worker processes.")
    log_level: LogLevel = Field(LogLevel.INFO, description="debug, info, warning or error.")
    home: Path = Field(CHECKOUT / ".gapless", description="Folder for the data of embedded servers.")
    database_url: str | None = Field(None, description="Postgres 14 or newer; none: an embedded one.")
    migrate_url: str | None = Field(None, description="The owner's credentials, if they differ.")
    redis_url: str | None = Field(None, description="Redis 7 or newer, or Valkey; none: an embedded one.")
    root_path: str = Field(
        "",
        pattern=r"^(/[A-Za-z0-9._~-]+)*$",
        description="Prefix that a proxy takes off each path: /events.",
    )
    proxies: _Networks = Field(
        (), description="Proxies whose X-Forwarded-For names the client, with commas: 127.0.0.1, 10.0.0.0/8."
    )
    metrics: Access = Field(
        Access.AUTO, description="Who sees /metrics: auto (with a credential once needed), open, off."
    )
    documents: Access = Field(
        Access.AUTO, description="Who sees /openapi.json and /asyncapi.json, the same; off hides /docs too."
    )
    allow_anonymous: bool = Field(False, description="Serve beyond loopback without credentials.")
    jwks_url: str | None = Field(
        None, pattern=r"^https?://", description="Where the keys of JWTs are published, as a JWK set."
    )
    jwt_keys: Path | None = Field(None, description="File with keys of JWTs, as a JWK set.")
    jwt_issuer: str | None = Field(None, min_length=1, description="What the iss of a JWT must be.")
    jwt_audience: str | None = Field(None, min_length=1, description="What the aud of a JWT must name.")
    jwt_max_lifetime: float = Field(86_400.0, gt=0, description="Most seconds that a JWT may be good for.")
    allowed_hosts: _Hosts = Field(
        (), description="Host names it answers to, with commas; also always addresses and localhost."
    )
    allowed_origins: _Origins = Field(
        (),
        description="Origins of other sites whose pages may use it, with commas: https://chat.example.org.",
    )
    auto_create_channels: bool = Field(True, description="Whether a publish creates its channel.")
    max_streams: int = Field(
        10_000,
        ge=1,
        le=1_000_000,
        description="Most live streams of a process, and most streams of deliveries.",
    )
    tail_bytes: int = Field(128 * 1024 * 1024, ge=1024 * 1024, description="Bytes of hot tails per process.")
    max_connections: int = Field(25_000, ge=16, le=1_000_000, description="Most connections of a process.")
    buffer_bytes: int = Field(
        128 * 1024 * 1024,
        ge=16 * 1024 * 1024,
        description="Bytes that a process holds of unfinished requests and of answers not yet taken.",
    )
    segment_age: float = Field(86_400.0, gt=0, description="Seconds after which a new segment begins.")
    maintenance_interval: float = Field(10.0, gt=0, description="Seconds between rounds of retention.")
    namespace: str = Field(
        "default",
        pattern=r"^[A-Za-z0-9_~:@.-]{1,255}$",
        description="Tenant of requests without a credential.",
    )
    definitions: Path | None = Field(
        None,
        description="JSON file of definitions, or a folder with a file for each namespace. A start imports it"
        " if it changed, before anything expires.",
    )
    webhook_allow_private: bool = Field(False, description="Let webhooks reach private addresses.")
    webhook_keys: Path | None = Field(
        None, description="File with keys that encrypt the secrets of webhooks, base64, each on a line."
    )
    metrics_interval: float = Field(
        15.0, ge=1, description="Seconds between measurements of the durable subscriptions."
    )
    metrics_subscriptions: int = Field(
        200, ge=0, le=10_000, description="Durable subscriptions with own metrics, the oldest first."
    )
    presence_expiry: float = Field(
        25.0, ge=1, le=30, description="Seconds after which clients of a process that died are gone."
    )
    slow_reader_timeout: float = Field(10.0, gt=0, le=3600, description="Seconds a reader may read nothing.")

    @field_validator("database_url", "migrate_url", "redis_url")
    @classmethod
    def _is_of_a_kind_served(cls, url: str | None, info: ValidationInfo) -> str | None:
        schemes = REDIS_SCHEMES if info.field_name == "redis_url" else POSTGRES_SCHEMES
        scheme, separator, _ = (url or "").partition("://")
        if url is not None and not (separator and scheme.lower() in schemes):
            wanted = " or ".join(f"{name}://" for name in schemes)
            raise ValueError(f"must begin with {wanted}" + (f", not with {scheme}://" if separator else ""))
        return url

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        file = Path(os.environ.get("GAPLESS_CONFIG", "gapless.toml"))
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, toml_file=file)

    @property
    def takes_tokens(self) -> bool:
        """Whether JWTs can be checked, so that every request needs a credential."""
        return self.jwks_url is not None or self.jwt_keys is not None

    @property
    def may_be_open(self) -> bool:
        """Whether it may serve without an API key."""
        return self.loopback_only or self.allow_anonymous or self.takes_tokens

    @property
    def loopback_only(self) -> bool:
        """Whether `host` cannot be reached from another machine."""
        return is_loopback(self.host)
