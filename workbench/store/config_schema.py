"""The schema of config.toml. The module is imported only if the file exists, because pydantic is slow to load."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class _StrictConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Ui(_StrictConfig):
    refresh_s: Annotated[float, Field(ge=0.2, le=60)] = 1.0


class GpuConfig(_StrictConfig):
    # The guard reverts GPU settings after this long without a heartbeat.
    heartbeat_s: Annotated[float, Field(ge=1, le=3600)] = 30.0


class Remembered(_StrictConfig):
    value: str
    run: str = Field(description="id of the newest READY run with this value")


class Config(_StrictConfig):
    """The contents of config.toml. `executables` maps a host name and an engine to the program that starts the engine
    there, quoted as in a shell. `remembered` maps a host name, a preset id and a variable to the value that was last
    given there."""

    ui: Ui = Field(default_factory=lambda: Ui.model_validate({}))
    gpu: GpuConfig = Field(default_factory=lambda: GpuConfig.model_validate({}))
    executables: dict[str, dict[str, str]] = Field(default_factory=dict)
    remembered: dict[str, dict[str, dict[str, Remembered]]] = Field(default_factory=dict)
