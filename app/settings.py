"""Settings: `GAPLESS_*` variables over a TOML file over defaults; flags of `serve` win over all."""

from __future__ import annotations

import ipaddress
import os
from enum import StrEnum
from pathlib import Path

from pydantic import Field
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

CHECKOUT = Path(__file__).resolve().parent.parent


class LogLevel(StrEnum):
    """How much is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Settings(BaseSettings):
    """All settings of the service. The TOML file is the one `GAPLESS_CONFIG` names, else `gapless.toml` in
    the working directory; its keys are the names below."""

    model_config = SettingsConfigDict(env_prefix="GAPLESS_", extra="ignore")

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8080, ge=0, le=65535, description="Port to listen on; 0 picks a free one.")
    workers: int = Field(1, ge=1, le=256, description="Worker processes.")
    log_level: LogLevel = Field(LogLevel.INFO, description="debug, info, warning or error.")
    home: Path = Field(CHECKOUT / ".gapless", description="Where the embedded servers keep their data.")
    database_url: str | None = Field(None, description="Postgres 14 or newer; none: an embedded one.")
    migrate_url: str | None = Field(None, description="The owner's credentials, where they differ.")
    redis_url: str | None = Field(None, description="Redis 7 or newer, or Valkey; none: an embedded one.")
    allow_anonymous: bool = Field(False, description="Serve beyond loopback without credentials.")
    auto_create_channels: bool = Field(True, description="Whether a first publish makes its channel.")
    max_streams: int = Field(
        10_000, ge=1, le=1_000_000, description="Live streams a process serves, and as many of deliveries."
    )
    tail_bytes: int = Field(128 * 1024 * 1024, ge=1024 * 1024, description="Bytes of hot tails a process.")
    segment_age: float = Field(86_400.0, gt=0, description="Seconds after which a new segment begins.")
    maintenance_interval: float = Field(10.0, gt=0, description="Seconds between rounds of retention.")
    namespace: str = Field(
        "default",
        pattern=r"^[A-Za-z0-9_~:@.-]{1,255}$",
        description="Tenant of requests without a credential.",
    )
    definitions: Path | None = Field(
        None,
        description="JSON file of definitions; a start imports it, if it changed, before anything expires.",
    )
    webhook_allow_private: bool = Field(False, description="Let webhooks reach private addresses.")
    slow_reader_timeout: float = Field(10.0, gt=0, description="Seconds a reader may take nothing.")

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
    def loopback_only(self) -> bool:
        """Whether `host` cannot be reached from another machine."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False
