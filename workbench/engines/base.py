"""The interface of an inference engine, and the conversion of a plan to the arguments of a command
line.

A new engine needs a subclass of `Engine` in a file of this package, a flag catalog in catalogs/,
and its name in registry.py. Everything that differs between engines is an attribute or a method of
`Engine`, so that no other code compares engine names.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from workbench.engines import catalog as catalogs
from workbench.engines.flag_values import format_argument, switch_to_on_off_word
from workbench.engines.kv_size import KvStorageRule
from workbench.engines.reported_settings import Answer
from workbench.engines.tunable_flags import TunableFlag
from workbench.model.errors import PlanError
from workbench.model.flags import FlagCatalog, FlagKind, FlagSetting, FlagSpec, FlagValue
from workbench.model.lazy_dataclass import dataclass
from workbench.model.plan import Command, LaunchPlan, Node

if TYPE_CHECKING:
    from workbench.engines.plan_context import PlanContext
    from workbench.model.findings import Finding

LOOPBACK = "127.0.0.1"
# CUDA context, activations and graphs of one GPU. An assumption: real values range from 0.5 GiB
# (eager, small batch) to several GiB (large max-num-batched-tokens).
RESERVE_GIB = 1.5


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """How an engine divides GPU memory between weights and KV cache. With a `share_flag`, it
    allocates that flag's share of each GPU's memory, and the KV cache fills what the weights leave
    of it. Without a `share_flag`, the first flag of `cache_size_flags` that is set gives the size
    of the KV cache."""

    share_flag: str = ""
    default_share: float = 0.9
    # the engine computes the share at start; `default_share` is an assumption
    chooses_share: bool = False
    reserve_gib: float = RESERVE_GIB  # activations and graphs inside the share
    cache_size_flags: tuple[str, ...] = ()
    cache_type_flags: tuple[str, ...] = ("kv-cache-dtype",)
    length_flag: str = ""  # the longest sequence, in tokens
    # starts even if the KV cache cannot contain one sequence of full length
    starts_with_short_cache: bool = False
    # refuses to start if less memory is free than the share that it allocates
    checks_free_at_start: bool = False


@dataclass(frozen=True, slots=True)
class PythonParser:
    """The functions and classes of an engine's Python package that build its argparse parser, each
    as "module:name". `parsers` are parser classes; `builders` are functions that add the flags to a
    parser. Of each list, the first entry that exists in the installed version is used."""

    parsers: tuple[str, ...]
    builders: tuple[str, ...]
    variables: str = ""  # a mapping whose keys are the engine's environment variables


class Engine:
    """An inference engine. Instances have no state; `engines.get_engine(name)` returns them."""

    name: ClassVar[str]
    title: ClassVar[str]
    general_preset: ClassVar[str]  # id of the shipped preset that starts any model
    executables: ClassVar[tuple[str, ...]]  # names to look for on the host's PATH, best first
    launch: ClassVar[tuple[str, ...]]  # argv prefix for a plan without an executable
    # Beginnings of a command line that starts the server; the program is given without its
    # directory.
    start_words: ClassVar[tuple[tuple[str, ...], ...]]
    # other programs that start this engine with the same flags, and what is known of them
    other_programs: ClassVar[Mapping[str, str]] = {}
    # Name of a flag in plans -> its name on this engine's command line, where they differ, such as
    # {"host": "server-name"}. Plans call the address "host" and "port", and the parallel sizes as
    # PARALLEL_SIZES of model/plan.py does.
    option_names: ClassVar[Mapping[str, str]] = {}
    positional_model: ClassVar[bool] = False  # the first word that is no flag names the model
    # Names of flags in recipes that are shared by all engines, such as sparkrun's -> names of this
    # engine's flags.
    shared_names: ClassVar[Mapping[str, str]] = {}
    image: ClassVar[str] = ""  # repository of the project's own container image
    image_tag: ClassVar[str] = "latest"  # of a version that is not known
    # what starts the server in that image, if not `launch`
    image_program: ClassVar[tuple[str, ...]] = ()
    sparkrun_runtime: ClassVar[str] = ""  # what sparkrun calls the engine; "": it does not start it
    # the values of the vLLM production stack describe this engine
    helm_chart: ClassVar[bool] = False
    default_port: ClassVar[int]
    model_flags: ClassVar[tuple[str, ...]]  # flags that name the model: they set plan.model instead
    # Python distributions whose version is the engine's version
    packages: ClassVar[tuple[str, ...]] = ()
    # after the executable; vLLM needs 12 s for it
    version_arguments: ClassVar[tuple[str, ...]] = ("--version",)
    parser: ClassVar[PythonParser | None] = None  # asked for the engine's own flags
    # print all flags, for an engine whose `flag_data_from_help` reads them
    help_arguments: ClassVar[tuple[str, ...]] = ()
    # numbers of a version that identify its flags; None: all of them
    release_parts: ClassVar[int | None] = None
    health_path: ClassVar[str] = "/health"  # asked while the server starts
    # Asked every few seconds once the server is READY, so it must not make the server generate.
    alive_path: ClassVar[str] = "/health"
    models_path: ClassVar[str] = "/v1/models"
    # groups "busy", "port": it chose another port by itself
    moved_port_log: ClassVar[re.Pattern[str] | None] = None
    # Log lines in which the engine reports that one of its own processes has ended. Group "part" is
    # its name; "pid" and "code" (negative for a signal) are in some of the lines.
    part_ended_logs: ClassVar[tuple[re.Pattern[str], ...]] = ()
    log_words: ClassVar[tuple[str, ...]]  # words in its logs that name it
    # Regular expression of what stands in front of the message of a log line, in verbose form.
    # Group "level" is the word or the letter of its level.
    log_prefix: ClassVar[str] = ""
    # The same for the screen, which shows "time" and "level" in place of it. "who" is the process.
    shortened_log: ClassVar[re.Pattern[str] | None] = None
    # The line in which it reports its speed. Groups "gen" (tokens per second), "running" and
    # "waiting" (requests); where the engine says them "prompt" (tokens per second), "engine"
    # (number of a replica), and of the KV cache "kv" (percent) or "used" (share).
    speed_log: ClassVar[re.Pattern[str] | None] = None
    # words of the log line after which it answers requests
    ready_words: ClassVar[tuple[str, ...]]
    version_log: ClassVar[re.Pattern[str]]  # group "version"
    phases: ClassVar[tuple[tuple[re.Pattern[str], str], ...]]  # log line -> phase, with "{group}"s
    metrics_path: ClassVar[str | None] = "/metrics"
    metrics_flag: ClassVar[str | None] = None  # without this flag metrics_path answers 404
    # the most requests that one replica processes at the same time
    concurrency_flag: ClassVar[str] = ""
    # the value of that flag if the plan leaves it to the engine; None: unknown, or no small number
    default_concurrency: ClassVar[int | None] = None
    threads_flag: ClassVar[str] = ""  # the threads that compute layers on the CPU
    # quantity -> sample names, newest first; see METRICS below
    metrics: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    # For an engine whose counters in `metrics` change only when a request ends: "prompt_tokens" or
    # "generation_tokens" -> samples whose sum counts these tokens at once. 'name{label="value"}'
    # takes one series of a name.
    live_metrics: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    # lists running requests with the output tokens that no counter has yet
    slots_path: ClassVar[str | None] = None
    # words of its refusal of a request that is longer than its context
    too_long_answer: ClassVar[re.Pattern[str]] = re.compile(
        r"context (length|size|window)", re.IGNORECASE
    )
    # "prompt_tokens" does not include the tokens of "prefix_hits"
    cached_beside_prompt: ClassVar[bool] = False
    tokenize_path: ClassVar[str | None] = None  # endpoint that counts the tokens of a text
    # how it is asked for log probabilities: an interface of workbench/quality/lanes
    score_interface: ClassVar[str | None] = None
    # endpoint that converts messages to a text, if it is a separate one
    template_path: ClassVar[str | None] = None
    # variable that sets the key without showing it in the process list
    api_key_env: ClassVar[str | None] = None
    # for an engine that always has a key: the flag that disables it
    no_key_flag: ClassVar[str] = ""
    # file in the working directory in which the engine stores a key of its own
    key_file: ClassVar[str | None] = None
    key_file_pattern: ClassVar[re.Pattern[str] | None] = None  # group 1: the key in that file
    # variable with the address of a host that the others reach
    host_address_env: ClassVar[str | None] = None
    env_prefix: ClassVar[str] = ""  # prefix of the engine's own variables
    # variables of that prefix which the catalog does not contain
    more_env: ClassVar[tuple[str, ...]] = ()
    argparse_values: ClassVar[bool] = True  # a value that starts with a dash needs "--flag=value"
    # any unambiguous beginning of a flag is valid, as in plain argparse
    accepts_flag_prefixes: ClassVar[bool] = False
    # splits a model over all visible GPUs instead of using parallel sizes
    uses_all_gpus: ClassVar[bool] = False
    # torch.compile or kernels built and tuned for a new configuration
    compiles_at_first_start: ClassVar[bool] = False
    uses_hub: ClassVar[bool] = False  # downloads a model that is named by its id
    loads_gguf: ClassVar[bool] = False  # its models are GGUF files, in the quantizations of GGUF
    memory: ClassVar[MemoryUse]
    # disables `compiled_parts`: faster start, slower decoding
    eager_flag: ClassVar[str] = ""
    compiled_parts: ClassVar[str] = "CUDA graphs"
    tunable_flags: ClassVar[tuple[TunableFlag, ...]] = ()  # what a tune tries
    # flags that people tune and a tune does not try, with the reason
    untried_flags: ClassVar[Mapping[str, str]] = {}
    speculation_flag: ClassVar[str] = ""  # its value is an object with the depth
    eight_bit_weights: ClassVar[str] = ""  # assignment that quantizes 16-bit weights when they load
    answers: ClassVar[tuple[Answer, ...]] = ()  # where the engine says what is in force
    # Group 1 is the configuration that the engine logs, as reported_settings.parse_logged_settings
    # reads it. The first has the values in force, the others those that were asked.
    config_logs: ClassVar[tuple[re.Pattern[str], ...]] = ()
    # name in that configuration -> flag, where they differ
    config_names: ClassVar[Mapping[str, str]] = {}
    # the first that exists answers the configuration in force as JSON
    config_paths: ClassVar[tuple[str, ...]] = ()
    # group 1: a variable that the engine does not know
    unknown_env_log: ClassVar[re.Pattern[str] | None] = None
    # variable that enables a custom all-reduce over PCIe
    pcie_all_reduce_env: ClassVar[str | None] = None
    # checks of this engine's plans only
    rules: ClassVar[tuple[Callable[[PlanContext], Iterator[Finding]], ...]] = ()

    def catalog(self, version: str | None = None) -> FlagCatalog:
        """Return the flag catalog of this engine that Workbench ships for the version nearest to
        `version`. None means the newest version."""
        nearest = catalogs.find_nearest_catalog_version(self.name, version)
        return catalogs.load_catalog(
            self.name, nearest, accepts_prefixes=self.accepts_flag_prefixes
        )

    def is_same_release(self, a: str | None, b: str | None) -> bool:
        """Return whether the versions `a` and `b` belong to one release, which means that they have
        the same flags. False if one of them is unknown."""
        release_a = catalogs.parse_version_numbers(a)[: self.release_parts]
        release_b = catalogs.parse_version_numbers(b)[: self.release_parts]
        return bool(release_a) and release_a == release_b

    def flag_data_from_help(self, text: str) -> dict[str, Any]:
        """Parse the help text that the engine prints with the arguments `help_arguments`. Return
        {"flags": [one dict for each flag]}, the data from which `own_flags.make_catalog_data` makes
        a catalog; {} for an engine whose help text Workbench cannot read."""
        return {}

    def start_phase_in_log_line(self, line: str) -> str | None:
        """Return the phase of the engine's start that a log line reports, such as "loading weights
        40 %". None if the line reports no phase."""
        for pattern, text in self.phases:
            if match := pattern.search(line):
                return text.format(**match.groupdict())
        return None

    def tokenize_request_body(
        self, model: str, request: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """Return the body of a POST to `tokenize_path` that counts the tokens of `request`.
        `request` has a "prompt" or "messages". None if the engine cannot count the tokens of such a
        request.
        """
        return None

    def normalize_parsed_plan(self, plan: LaunchPlan) -> LaunchPlan:
        """Adjust a plan that was parsed from a command line, so that `command` makes the same
        command line from it. An engine whose model needs several flags joins their values here."""
        return plan

    def flags_of_rank(
        self, plan: LaunchPlan, rank: int, count: int, head: str
    ) -> Mapping[str, FlagValue] | None:
        """Return the flags to add to the command of rank number `rank` (from 0) of a server with
        `count` ranks. Each rank runs on another host; `head` is the address of the host of rank 0.
        None if the engine cannot span hosts."""
        return None

    def drafted_tokens_per_step(
        self, flags: Mapping[str, Any], version: str | None = None
    ) -> int | None:
        """Return the number of tokens that a step drafts per stream at most; 0 without speculative
        decoding, None if the engine itself chooses the number, by the model or by the load.

        `version` is that of the engine. If it is None, defaults that changed count as unknown.
        """
        return 0

    def replicas_per_node(self, context: PlanContext) -> int:
        """Return the number of data-parallel replicas that the plan runs on one node. Each replica
        has its own GPUs."""
        return context.flag_count_or_one("data-parallel-size")

    def kv_storage_rule(self, context: PlanContext) -> KvStorageRule:
        """Return how the engine stores what layers with a sliding window or with a state keep."""
        return KvStorageRule()

    def computes_all_layers_on_cpu(self, context: PlanContext) -> bool:
        """Return whether the CPU computes all layers of the model: the installed engine is such a
        build, as 0.32.0+cpu is."""
        return (context.installed or "").endswith("+cpu")

    def may_compute_layers_on_cpu(self, context: PlanContext) -> bool:
        """Return whether the CPU computes layers of the model, or may compute some."""
        return self.computes_all_layers_on_cpu(context)

    def flag_assignments_for_concurrency(
        self, context: PlanContext, concurrency: int
    ) -> tuple[str, ...]:
        """Return the assignments for a server that processes `concurrency` requests at a time, each
        of which may be as long as those of the plan."""
        return (f"{self.concurrency_flag}={concurrency}",)

    def why_no_memory_estimate(self, context: PlanContext) -> str | None:
        """Return the reason why the memory of this plan cannot be estimated, or None if it can."""
        return None

    def command(
        self, plan: LaunchPlan, node: Node | None = None, catalog: FlagCatalog | None = None
    ) -> Command:
        """Return the command that starts the server of `plan`, always with an explicit host and
        port.

        If the server spans several nodes, `node` selects the node whose command is returned.
        `catalog` has the flags of the installed engine; without it, the shipped catalog of the
        plan's version is used. Raises PlanError if the plan has no model, or if a value cannot be
        passed as an argument.
        """
        if not plan.model:
            raise PlanError("the plan has no model", next_step="set the model: a hub id or a path")
        if plan.model.startswith("-"):
            raise PlanError(
                f"the model {plan.model!r} would be read as an option, because it begins with a "
                "dash",
                next_step="write the path of the model as ./-name",
            )
        if node:
            plan = self._apply_node_overrides(plan, node)
        catalog = catalog or self.catalog(plan.engine_version)
        host = str(plan.flag("host") or LOOPBACK)
        port = self._port_of_plan_or_default(plan)
        argv = [*self.first_command_words(plan), *self.model_arguments(plan)]
        argv += [
            self.command_line_option("host"),
            host,
            self.command_line_option("port"),
            str(port),
        ]
        for setting in plan.flags:
            if setting.name not in ("host", "port"):
                argv += self.make_flag_arguments(
                    catalog, setting, is_version_known=plan.engine_version is not None
                )
        env = plan.env_texts
        if nul := next((a for a in (*argv, *env, *env.values()) if "\0" in a), None):
            text = (
                f"the argument or variable {nul!r} contains a NUL character, which no process "
                "accepts"
            )
            raise PlanError(text, next_step="remove the NUL character")
        return Command(
            tuple(argv), env, workdir=plan.workdir, open_files=plan.open_files, host=host, port=port
        )

    def command_line_option(self, name: str) -> str:
        """Return the option on the command line of the flag that plans call `name`, such as
        "--host"."""
        return f"--{self.option_names.get(name, name)}"

    def first_command_words(self, plan: LaunchPlan) -> tuple[str, ...]:
        """Return the first words of the command: the plan's executable, or the engine's usual
        program if the plan names none.
        """
        return plan.executable or self.launch

    def model_arguments(self, plan: LaunchPlan) -> tuple[str, ...]:
        """Return the command-line arguments that name the model."""
        return (f"--{self.model_flags[0]}", plan.model)

    def option_to_switch_off(self, spec: FlagSpec, is_version_known: bool) -> str | None:
        """Return the option that switches the flag off, such as --no-x. None if the flag has no
        such option. `is_version_known` is True if the engine's version is known; otherwise the
        option must be one that all versions accept."""
        return spec.negation

    def make_flag_arguments(
        self, catalog: FlagCatalog, setting: FlagSetting, is_version_known: bool = True
    ) -> list[str]:
        """Return the command-line arguments for one flag; [] for a flag that is switched off by
        leaving it out. A flag that the catalog does not contain is passed under its name in the
        plan. `is_version_known` is True if the engine's version is known. Raises PlanError for a
        value that the engine would read as an option."""
        option = self.command_line_option(setting.name)
        spec = catalog.flags.get(setting.name) or _spec_of_unknown_option(option)
        value = switch_to_on_off_word(spec, setting.value)
        if spec.value_takes_bool_word:
            return [option, str(value)]
        if isinstance(value, bool):
            return self._make_switch_arguments(spec, option, value, is_version_known)
        if not isinstance(value, list | tuple) or spec.kind == FlagKind.JSON:
            return self._make_option_arguments(option, format_argument(value))
        words = [format_argument(v) for v in value]
        if not words:
            return [option] if spec.nargs == "*" else []
        if len(words) == 1:
            return self._make_option_arguments(option, words[0])
        if spec.nargs == ",":
            return self._make_option_arguments(option, ",".join(words))
        if spec.nargs:
            if self.argparse_values and (
                other := next((w for w in words if re.match(r"-[^\d.]", w)), None)
            ):
                text = (
                    f"the value {other!r} of --{setting.name} begins with a dash and would be "
                    "read as an option"
                )
                raise PlanError(text, next_step=f"remove {other!r} from --{setting.name}")
            return [option, *words]
        return [argument for w in words for argument in self._make_option_arguments(option, w)]

    def _make_switch_arguments(
        self, spec: FlagSpec, option: str, on: bool, is_version_known: bool
    ) -> list[str]:
        if on:
            return [option]
        off = self.option_to_switch_off(spec, is_version_known)
        return [off] if off else []  # without a negation, a flag is turned off by omitting it

    def _make_option_arguments(self, option: str, text: str) -> list[str]:
        # vLLM's parser accepts even "-0.5" as a dotted option ("--config.key"), so only whole
        # numbers are safe apart.
        looks_like_option = text.startswith("-") and not re.fullmatch(r"-\d+", text)
        if looks_like_option and self.argparse_values:
            return [f"{option}={text}"]
        return [option, text]

    def _port_of_plan_or_default(self, plan: LaunchPlan) -> int:
        value = plan.flag("port")
        try:
            return self.default_port if value is None else int(value)
        except (TypeError, ValueError):
            raise PlanError(
                f"port is {format_argument(value)!r}, expected a number",
                next_step="set port to a number from 1 to 65535",
            ) from None

    def _apply_node_overrides(self, plan: LaunchPlan, node: Node) -> LaunchPlan:
        for name, value in node.flags.items():
            plan = plan.with_flag(name, value)
        for name, text in node.env.items():
            plan = plan.with_env(name, text)
        return replace(
            plan,
            nodes=(),
            executable=plan.executable if node.executable is None else node.executable,
        )


def _spec_of_unknown_option(option: str) -> FlagSpec:
    """Return the specification of an option that the catalog does not contain: its value is passed
    as text, and --no-NAME switches it off."""
    name = option.removeprefix("--")
    return FlagSpec(name, FlagKind.STR, negation=f"--no-{name}")


def is_python_interpreter(words: Sequence[str]) -> bool:
    """Return whether the last of `words`, the words of a program, is a Python interpreter, such as
    "/opt/vllm/bin/python" or "python3.12"."""
    return bool(words) and re.fullmatch(r"python[\d.]*", posixpath.basename(words[-1])) is not None


# Quantities that `Engine.metrics` may name. The names of histograms omit _bucket, _sum and _count.
METRICS = {
    "running": "requests being decoded",
    "waiting": "requests in the queue",
    "kv_usage": "used share of the KV cache, 0 to 1",
    "prefix_hits": "prompt tokens found in the prefix cache (counter)",
    "prefix_queries": "prompt tokens looked up in the prefix cache (counter)",
    "prompt_tokens": "prompt tokens (counter)",
    "generation_tokens": "output tokens (counter)",
    "generation_tok_s": "output tokens per second, as measured by the engine",
    "requests": "finished requests (counter)",
    "ttft_s": "time to first token, seconds (histogram)",
    "itl_s": "time between tokens, seconds (histogram)",
    "tpot_s": "time per output token of a request, seconds (histogram)",
    "e2e_s": "request latency, seconds (histogram)",
    "queue_s": "time in the queue, seconds (histogram)",
    "preemptions": "requests returned to the queue",
    "kv_tokens": "capacity of the KV cache in tokens",
    "drafted": "speculative tokens drafted (counter)",
    "accepted": "speculative tokens accepted (counter)",
}
