"""TabbyAPI (ExLlamaV3): `python main.py`, run from its own directory. Facts from its source as of 2026-08-13."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from workbench.engines.base import Engine
from workbench.model.errors import PlanError
from workbench.model.flags import FlagSetting
from workbench.model.plan import Command, LaunchPlan, Node

CONFIG_FILE = "config.yml"


class Tabbyapi(Engine):
    name = "tabbyapi"
    title = "TabbyAPI"
    executables = ("python", "python3")
    launch = ("python", "main.py")
    default_port = 5000
    model_flags = ("model-name",)
    version_arguments = ()
    env_prefix = "TABBY_"
    metrics_path = None  # its figures stand in the log, one line per request
    tokenize_path = "/v1/token/encode"
    # It serves only after the model is loaded, and then prints its addresses.
    ready_log = re.compile(r"Uvicorn running on|Chat completions: https?://")
    url_log = re.compile(r"(?:Uvicorn running on|Chat completions:) (?P<url>https?://[^/\s]+)")
    moved_port_log = re.compile(r"Port (?P<busy>\d+) is currently in use\. Switching to (?P<port>\d+)")
    version_log = re.compile(r"tabbyAPI[ :@]+(?P<version>[0-9a-f]{7,40})\b", re.IGNORECASE)
    phases = (
        (re.compile(r"Loading (?:model|draft|vision) modules\D+(?P<pct>\d+)%"), "loading weights {pct} %"),
        (re.compile(r"Loading (?:model|draft|vision) modules|Loading model"), "loading weights"),
        (re.compile(r"Model successfully loaded"), "model loaded"),
    )

    def tokenize_body(self, model: str, asked: Mapping[str, Any]) -> dict[str, Any] | None:
        return {"text": asked.get("prompt") or asked.get("messages")}

    def model_arguments(self, plan: LaunchPlan) -> tuple[str, ...]:
        """A path is split into model-dir and model-name; a plain name is looked up in model-dir."""
        directory, name = posixpath.split(plan.model.rstrip("/"))
        if directory and plan.model.startswith(("/", "./", "../", "~")) and plan.flag("model-dir") is None:
            return ("--model-dir", directory, "--model-name", name)
        return ("--model-name", plan.model)

    def command(self, plan: LaunchPlan, node: Node | None = None) -> Command:
        """As for any engine; settings that only its YAML file takes go into a file of the run directory.

        That file replaces the config.yml of the working directory, as `--config` does.
        """
        catalog = self.catalog(plan.engine_version)
        in_file: list[FlagSetting] = []
        for setting in plan.flags:
            if isinstance(setting.value, dict) or (setting.name == "loras" and isinstance(setting.value, list)):
                in_file.append(setting)
        plan = replace(plan, flags=tuple(f for f in plan.flags if f not in in_file))
        command = super().command(plan, node)
        if not in_file:
            return command
        if plan.flag("config") is not None:
            names = ", ".join(f.name for f in in_file)
            raise PlanError(
                f"{names} can only stand in a configuration file, and the plan names one of its own",
                next_step=f"write {names} into that file and unset it here, or unset config",
            )
        sections: dict[str, dict[str, Any]] = {}
        for setting in in_file:
            spec = catalog.flags.get(setting.name)
            section = sections.setdefault(spec.group if spec else "model", {})
            section[setting.name.replace("-", "_")] = setting.value
        text = json.dumps(sections, indent=2, ensure_ascii=False) + "\n"  # JSON is YAML
        argv = (*command.argv, "--config", f"{{run_dir}}/{CONFIG_FILE}")
        return replace(command, argv=argv, files={CONFIG_FILE: text})
