"""What an engine is to the rest of Workbench, and how a plan becomes an argument list."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from workbench.engines import catalog as catalogs
from workbench.engines.flag_values import on_off, word
from workbench.model.errors import PlanError
from workbench.model.flags import FlagCatalog, FlagKind, FlagSetting, FlagSpec
from workbench.model.plan import Command, LaunchPlan, Node

LOOPBACK = "127.0.0.1"


class Engine:
    """One inference engine. Instances hold no state; get them from `engines.get(name)`."""

    name: ClassVar[str]
    title: ClassVar[str]
    executables: ClassVar[tuple[str, ...]]  # looked for on the host's PATH, best first
    launch: ClassVar[tuple[str, ...]]  # argv prefix when the plan has no executable
    default_port: ClassVar[int]
    model_flags: ClassVar[tuple[str, ...]]  # flags that name the model: they set plan.model instead
    packages: ClassVar[tuple[str, ...]] = ()  # Python distributions whose version is the engine's
    version_arguments: ClassVar[tuple[str, ...]] = ("--version",)  # after the executable; vLLM takes 12 s for it
    health_path: ClassVar[str] = "/health"
    models_path: ClassVar[str] = "/v1/models"
    ready_log: ClassVar[re.Pattern[str]]
    url_log: ClassVar[re.Pattern[str]]  # group "url": where the server really listens
    moved_port_log: ClassVar[re.Pattern[str] | None] = None  # groups "busy", "port": it chose another port by itself
    version_log: ClassVar[re.Pattern[str]]  # group "version"
    phases: ClassVar[tuple[tuple[re.Pattern[str], str], ...]]  # log line -> phase, with "{group}"s
    metrics_path: ClassVar[str | None] = "/metrics"
    metrics_flag: ClassVar[str | None] = None  # without it metrics_path answers 404
    metrics: ClassVar[Mapping[str, tuple[str, ...]]] = {}  # quantity -> sample names, newest first; see METRICS below
    cached_beside_prompt: ClassVar[bool] = False  # "prompt_tokens" leaves out those that "prefix_hits" counts
    tokenize_path: ClassVar[str | None] = None  # where the server counts the tokens of a text
    template_path: ClassVar[str | None] = None  # where it first writes messages as a text, if it is apart
    bench_fields: ClassVar[Mapping[str, Any]] = {"ignore_eos": True}  # body fields that force full-length answers
    min_tokens_field: ClassVar[str | None] = "min_tokens"  # body field that takes max_tokens for the same purpose
    api_key_env: ClassVar[str | None] = None  # variable that sets the key without showing it in the process list
    env_prefix: ClassVar[str] = ""  # variables of this prefix belong to the engine
    argparse_values: ClassVar[bool] = True  # a value that starts with a dash needs "--flag=value"

    def catalog_versions(self) -> tuple[str, ...]:
        """Versions that there is a flag catalog of, oldest first."""
        return catalogs.versions(self.name)

    def catalog(self, version: str | None = None) -> FlagCatalog:
        """The catalog nearest to `version`: the newest not newer than it; the newest of all for None."""
        return catalogs.load(self.name, catalogs.nearest_version(self.name, version))

    def phase(self, line: str) -> str | None:
        """What the server is doing, if this log line says so: "loading weights 40 %"."""
        for pattern, text in self.phases:
            if match := pattern.search(line):
                return text.format(**match.groupdict())
        return None

    def tokenize_body(self, model: str, asked: Mapping[str, Any]) -> dict[str, Any] | None:
        """What to POST to `tokenize_path` for a request's {"prompt": …} or {"messages": …}; None: it cannot count
        such."""
        return None

    def command(self, plan: LaunchPlan, node: Node | None = None) -> Command:
        """The command that starts `plan`, for `node` of a server that spans several. Host and port are always explicit.

        Raises PlanError when the plan cannot be written as a command.
        """
        if not plan.model:
            raise PlanError("the plan names no model", next_step="set the model: a hub id or a path")
        if plan.model.startswith("-"):
            raise PlanError(f"the model {plan.model!r} reads as an option", next_step="write a path as ./-name")
        if node:
            plan = self._on_node(plan, node)
        catalog = self.catalog(plan.engine_version)
        host = str(plan.flag("host") or LOOPBACK)
        port = self._port(plan)
        argv = [*self.launch_prefix(plan), *self.model_arguments(plan)]
        argv += ["--host", host, "--port", str(port)]
        for setting in plan.flags:
            if setting.name not in ("host", "port"):
                argv += self.flag_arguments(catalog, setting, exact=plan.engine_version is not None)
        env = {e.name: str(e.value) for e in plan.env}
        if nul := next((a for a in (*argv, *env, *env.values()) if "\0" in a), None):
            raise PlanError(f"{nul!r} holds a NUL character, which no argument can", next_step="remove it")
        return Command(tuple(argv), env, workdir=plan.workdir, host=host, port=port)

    def launch_prefix(self, plan: LaunchPlan) -> tuple[str, ...]:
        return plan.executable or self.launch

    def model_arguments(self, plan: LaunchPlan) -> tuple[str, ...]:
        """How the model is named on the command line."""
        return (f"--{self.model_flags[0]}", plan.model)

    def negation(self, spec: FlagSpec, exact: bool) -> str | None:
        """How a flag is turned off. `exact`: the engine's version is known, else a form that all versions take."""
        return spec.negation

    def flag_arguments(self, catalog: FlagCatalog, setting: FlagSetting, exact: bool = True) -> list[str]:
        """One flag as arguments. Unknown flags are written as they are."""
        spec, option, value = catalog.flags.get(setting.name), f"--{setting.name}", setting.value
        value = on_off(spec, value)
        if isinstance(value, bool) and not (spec and spec.value_takes_bool_word):
            return self._switch(spec, option, value, exact)
        if spec and spec.value_takes_bool_word:
            return [option, str(value)]
        if not isinstance(value, list | tuple) or (spec and spec.kind == FlagKind.JSON):
            return self._with_value(option, word(value))
        words = [word(v) for v in value]
        if not words:
            return [option] if spec and spec.nargs == "*" else []
        if len(words) == 1:
            return self._with_value(option, words[0])
        if spec and spec.nargs == ",":
            return self._with_value(option, ",".join(words))
        if spec and spec.nargs:
            if self.argparse_values and (other := next((w for w in words if re.match(r"-[^\d.]", w)), None)):
                raise PlanError(f"--{setting.name}: {other!r} reads as another option", next_step="leave it out")
            return [option, *words]
        return [argument for w in words for argument in self._with_value(option, w)]

    def _switch(self, spec: FlagSpec | None, option: str, on: bool, exact: bool) -> list[str]:
        if on:
            return [option]
        if spec is None:
            return [f"--no-{option.removeprefix('--')}"]
        off = self.negation(spec, exact)
        return [off] if off else []  # no way to write it: off is what leaving it out means

    def _with_value(self, option: str, text: str) -> list[str]:
        # vLLM's parser takes even "-0.5" for a dotted option ("--config.key"), so only whole numbers stand alone.
        looks_like_option = text.startswith("-") and not re.fullmatch(r"-\d+", text)
        return [f"{option}={text}"] if looks_like_option and self.argparse_values else [option, text]

    def _port(self, plan: LaunchPlan) -> int:
        value = plan.flag("port")
        try:
            return self.default_port if value is None else int(value)
        except (TypeError, ValueError):
            raise PlanError(f"port is {word(value)!r}, expected a number", next_step="set port to 1 to 65535") from None

    def _on_node(self, plan: LaunchPlan, node: Node) -> LaunchPlan:
        for name, value in node.flags.items():
            plan = plan.with_flag(name, value)
        for name, text in node.env.items():
            plan = plan.with_env(name, text)
        return replace(plan, nodes=())


# Quantities that `Engine.metrics` may name. Histograms stand under the name without _bucket/_sum/_count.
METRICS = {
    "running": "requests being decoded",
    "waiting": "requests in the queue",
    "kv_usage": "share of the KV cache in use; the engines give 0..1",
    "prefix_hits": "prompt tokens found in the prefix cache (counter)",
    "prefix_queries": "prompt tokens looked up there (counter)",
    "prompt_tokens": "prompt tokens (counter)",
    "generation_tokens": "output tokens (counter)",
    "generation_tok_s": "output tokens per second as the engine counts them",
    "requests": "finished requests (counter)",
    "ttft_s": "time to first token, seconds (histogram)",
    "itl_s": "time between tokens, seconds (histogram)",
    "tpot_s": "time per output token of a request, seconds (histogram)",
    "e2e_s": "request latency, seconds (histogram)",
    "queue_s": "time in the queue, seconds (histogram)",
    "preemptions": "requests put back into the queue",
    "kv_tokens": "tokens that the KV cache holds",
    "drafted": "speculative tokens drafted (counter)",
    "accepted": "speculative tokens accepted (counter)",
}
