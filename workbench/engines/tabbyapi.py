"""TabbyAPI (ExLlamaV3), started as `python main.py` in its source directory. Log lines and flags
are those of its source code of 2026-08-13.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from workbench.engines.base import Engine, MemoryUse
from workbench.engines.plan_context import PlanContext
from workbench.engines.reported_settings import TABBYAPI
from workbench.engines.speculation import drafted_by_tabbyapi
from workbench.engines.tunable_flags import KV, PREFILL, TunableFlag
from workbench.model.errors import PlanError
from workbench.model.findings import Finding, Level
from workbench.model.flags import FlagCatalog, FlagSetting
from workbench.model.plan import Command, LaunchPlan, Node

CONFIG_FILE = "config.yml"


def report_missing_workdir_or_old_backend(context: PlanContext) -> Iterator[Finding]:
    """Report a plan that does not start TabbyAPI in its source directory, and a plan that selects
    the ExLlamaV2 backend, which TabbyAPI has removed."""
    if not context.plan.workdir and not any(
        part.startswith("/") for part in context.plan.executable
    ):
        text = "TabbyAPI starts in its own source directory, and the plan has no working directory"
        yield Finding(
            Level.ERROR,
            "workdir.missing",
            text,
            fix="set `workdir` in the table [engine] of the preset",
        )
    if context.effective_flag_value("backend") == "exllamav2":
        text = "the ExLlamaV2 backend was removed on 2026-07-14"
        yield Finding(
            Level.WARN,
            "flag.removed",
            text,
            "backend",
            "use an EXL3 model, or TabbyAPI at commit 79126f9",
        )


class Tabbyapi(Engine):
    name = "tabbyapi"
    title = "TabbyAPI"
    general_preset = "tabbyapi-any"
    executables = ("python", "python3")
    launch = ("python", "main.py")
    start_words = (("python", "main.py"), ("python", "start.py"))
    shared_names: ClassVar[Mapping[str, str]] = {"max-model-len": "max-seq-len"}
    image = "ghcr.io/theroyallab/tabbyapi"
    image_program = ("python3", "main.py")
    default_port = 5000
    model_flags = ("model-name",)
    version_arguments = ()
    no_key_flag = "disable-auth"
    key_file = "api_tokens.yml"  # "api_key: K", or a list below "api_key:"
    key_file_pattern = re.compile(
        r"^api_key:[ "
        r"\t]*(?:\n\s*-\s*)?[\"']?([^\s\"'#\[\]]+)",
        re.MULTILINE,
    )
    env_prefix = "TABBY_"
    more_env = ("TABBY_LOG_CONSOLE_WIDTH",)
    uses_all_gpus = True
    tunable_flags = (
        TunableFlag("cache-mode", ("Q8",), KV),
        TunableFlag("chunk-size", ("1024", "4096"), PREFILL, grows=True),
    )
    memory = MemoryUse(
        cache_size_flags=("cache-size", "max-seq-len"),
        cache_type_flags=("cache-mode",),
        length_flag="max-seq-len",
    )
    answers = TABBYAPI
    rules = (report_missing_workdir_or_old_backend,)
    metrics_path = None  # it writes its metrics to the log, one line per request
    tokenize_path = "/v1/token/encode"
    too_long_answer = re.compile("max_seq_len")
    score_interface = "text"
    # It listens after the model has been loaded, and then prints its addresses.
    moved_port_log = re.compile(
        r"Port (?P<busy>\d+) is currently in use\. Switching to "
        r"(?P<port>\d+)"
    )
    version_log = re.compile(r"tabbyAPI[ :@]+(?P<version>[0-9a-f]{7,40})\b", re.IGNORECASE)
    log_words = ("exllama", "tabbyAPI")
    # "2025-04-30 13:18:44.754 ERROR:    "
    log_prefix = r"\d{4}-\d\d-\d\d\ \d\d:\d\d:\d\d[.,]\d{3}\ (?P<level>[A-Z]+):\ {1,4}"
    ready_words = ("Model successfully loaded",)
    phases = (
        (
            re.compile(
                r"Loading (?:model|draft|vision) "
                r"modules\D+(?P<pct>\d+)%"
            ),
            "loading weights {pct} %",
        ),
        (re.compile(r"Loading (?:model|draft|vision) modules|Loading model"), "loading weights"),
        (re.compile(r"Model successfully loaded"), "model loaded"),
    )

    def tokenize_request_body(
        self, model: str, request: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        return {"text": request.get("prompt") or request.get("messages")}

    def drafted_tokens_per_step(
        self, flags: Mapping[str, Any], version: str | None = None
    ) -> int | None:
        return drafted_by_tabbyapi(flags)

    def normalize_parsed_plan(self, plan: LaunchPlan) -> LaunchPlan:
        """Return the plan with the values of model-dir and model-name joined to one path of the
        model."""
        directory = plan.flag("model-dir")
        if (
            not isinstance(directory, str)
            or not directory.startswith("/")
            or "/" in plan.model
            or not plan.model
        ):
            return plan
        return replace(plan, model=posixpath.join(directory, plan.model)).without_flag("model-dir")

    def model_arguments(self, plan: LaunchPlan) -> tuple[str, ...]:
        """Return the arguments that name the model. A path is split into model-dir and model-name.
        For a plain name, only model-name is passed, because TabbyAPI looks for it in its model
        directory."""
        directory, name = posixpath.split(plan.model.rstrip("/"))
        if (
            directory
            and plan.model.startswith(("/", "./", "../", "~"))
            and plan.flag("model-dir") is None
        ):
            return ("--model-dir", directory, "--model-name", name)
        return ("--model-name", plan.model)

    def command(
        self, plan: LaunchPlan, node: Node | None = None, catalog: FlagCatalog | None = None
    ) -> Command:
        """Return the command that starts the server. Settings that only a YAML file can express are
        written to a configuration file in the run directory.

        The option --config names that file, and TabbyAPI then reads it instead of config.yml in the
        working directory. Raises PlanError if the plan sets --config too.
        """
        catalog = catalog or self.catalog(plan.engine_version)
        in_file: list[FlagSetting] = []
        for setting in plan.flags:
            if isinstance(setting.value, dict) or (
                setting.name == "loras" and isinstance(setting.value, list)
            ):
                in_file.append(setting)
        plan = replace(plan, flags=tuple(f for f in plan.flags if f not in in_file))
        command = super().command(plan, node, catalog)
        if not in_file:
            return command
        if plan.flag("config") is not None:
            names = ", ".join(f.name for f in in_file)
            raise PlanError(
                f"{names} can only be set in a configuration file, but the flag config already "
                "names another file",
                next_step=f"set {names} in the configuration file and remove them from the plan, "
                "or unset config",
            )
        sections: dict[str, dict[str, Any]] = {}
        for setting in in_file:
            spec = catalog.flags.get(setting.name)
            section = sections.setdefault(spec.group if spec else "model", {})
            section[setting.name.replace("-", "_")] = setting.value
        text = json.dumps(sections, indent=2, ensure_ascii=False) + "\n"  # JSON is YAML
        argv = (*command.argv, "--config", f"{{run_dir}}/{CONFIG_FILE}")
        return replace(command, argv=argv, files={CONFIG_FILE: text})
