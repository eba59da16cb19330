"""Compares the settings in a running server's plan with the settings that the server actually uses.

An engine may replace a requested value, and reports the change only in one of these sources: the
process's command line and environment, the metrics page, the answers of the server's endpoints, or
the log. Each row of the comparison names its source. A setting that no source reports is shown as
"not reported".
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, NamedTuple

from workbench.engines.reported_settings import Answer, parse_logged_settings
from workbench.model.errors import HostError
from workbench.model.in_force import InForceReport, InForceRow
from workbench.model.lazy_dataclass import dataclass
from workbench.model.plan import Command
from workbench.model.secrets import MASK, is_secret_name, mask_data, mask_text
from workbench.model.untrusted_text import as_table, clean_json, clean_text
from workbench.server.running_server_secrets import read_process_command

if TYPE_CHECKING:
    from typing import TypeGuard

    from workbench.engines.base import Engine
    from workbench.server.watched_run import WatchedRun

TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 4 * 2**20  # of one answer; SGLang describes itself in 30 KB
MAX_SETTINGS = 4000  # in one configuration; SGLang has 530
SEARCHED_LOG_LINES = 2000  # of the log, from its start
MAX_VALUE_CHARACTERS = 200
_MAX_PARSED_CHARACTERS = 20_000  # of a value, before it is cut to what is shown
# Variables that change how an engine works, beside those with the engine's own prefix.
_VARIABLE_PREFIXES = (
    "CUDA_",
    "NCCL_",
    "GLOO_",
    "TORCH_",
    "PYTORCH_",
    "TRITON_",
    "HF_",
    "OMP_",
    "RAY_",
    "FLASHINFER_",
    "NVIDIA_",
)
_OTHER_VARIABLES = ("LD_PRELOAD", "LD_LIBRARY_PATH")
_DECIMAL_SIZES = {"k": 1e3, "m": 1e6, "g": 1e9}
_BINARY_SIZES = {"K": 1024, "M": 1024**2, "G": 1024**3}
_METRIC_LINE = re.compile(
    r"^(?P<name>[\w:]+)(?P<labels>(?:\{.*\})?)\s+(?P<value>\S+)", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Sources:
    """What a running server reports about its settings. `answers` has the JSON answers of its HTTP
    endpoints by path. `config` has the settings that the engine says it uses, by flag name, and
    `config_from` says whether they are from an answer or from the log. `parsed` has the settings
    from the log lines in which the engine prints its parsed command line."""

    log: Sequence[str] = ()
    metrics: str = ""
    answers: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, str] = field(default_factory=dict)
    config_from: str = ""
    parsed: Mapping[str, str] = field(default_factory=dict)
    process: Command | None = None
    pid: int | None = None
    notes: tuple[str, ...] = ()
    port: int | None = None  # at which the server has answered


async def read_settings_in_force(run: WatchedRun) -> InForceReport:
    """Return the settings in the plan of the run's server, each with the value that the server
    actually uses, None if no source reports it. A source that cannot be read adds a note to the
    report. Never raises for what the server answers."""
    engine, notes = run.engine, list[str]()
    if engine is None:
        return InForceReport(
            run.record.run_id, (), (f"this Workbench does not know the engine {run.record.engine}",)
        )
    process, why = None, "the server has ended"
    if run.facts.alive:
        why = "its process cannot be read by this user"
        if run.facts.pid:
            process = await read_process_command(run.host, run.facts.pid)
    if process is None:
        notes.append(f"{why}: its command line and environment are those that were asked")
    got: dict[str, _EndpointAnswer] = {}
    if run.facts.alive:
        try:
            got = await _ask_endpoints(run, engine, notes)
        except HostError as error:
            notes.append(f"its server cannot be reached: {error.message}")
    # A server may answer anything, and its answers are not small: they are read beside the screen.
    log = run.follower.ring.lines(0, SEARCHED_LOG_LINES)
    return await asyncio.to_thread(
        _compare_settings_in_force, run, engine, got, log, process, notes
    )


def _compare_settings_in_force(
    run: WatchedRun,
    engine: Engine,
    http_answers: Mapping[str, _EndpointAnswer],
    log: Sequence[str],
    process: Command | None,
    notes: list[str],
) -> InForceReport:
    answers, metrics = _parse_answers_and_metrics(engine, http_answers, notes)
    config, config_from = _settings_in_answer(answers.get("config")), "server's answer"
    logged = [_settings_in_log(log, pattern) for pattern in engine.config_logs]
    if not config and logged:
        config, config_from = logged[0], "log"
    asked: dict[str, str] = {}
    for settings in logged[1:]:
        asked |= settings
    plan, command = run.record.plan, run.record.command
    names = {**_flag_aliases(engine, plan.engine_version), **engine.config_names}
    sources = Sources(
        log,
        metrics,
        answers,
        _rename_settings(config, names),
        config_from,
        _rename_settings(asked, names),
        process,
        run.facts.pid,
        tuple(notes),
        run.port if answers or metrics else None,
    )
    flags = {engine.model_flags[0]: plan.model, **plan.flag_values}
    return in_force_report(
        run.record.run_id, engine, flags, dict(command.env), sources, run.secrets
    )


def _rename_settings(settings: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    return {names.get(name, name): value for name, value in settings.items()}


def _flag_aliases(engine: Engine, version: str | None) -> dict[str, str]:
    """Return {alternative name: name} of the engine's flags in its `version`, without leading
    dashes: an engine may log "tp_size" for tensor-parallel-size."""
    flags = engine.catalog(version).flags.values()
    return {alias.lstrip("-"): flag.name for flag in flags for alias in flag.aliases}


def in_force_report(
    run_id: str,
    engine: Engine,
    flags: Mapping[str, Any],
    env: Mapping[str, str],
    sources: Sources,
    secrets: Sequence[str] = (),
) -> InForceReport:
    """Return the comparison of the requested `flags` and environment variables `env` with the
    values in `sources`. `secrets`, and what looks like one, are masked."""
    rows, reported = list[InForceRow](), set[str | None]()
    for answer in engine.answers:
        row = _answer_row(answer, flags, sources)
        if row.in_force is not None:
            rows.append(row)
            reported.add(answer.flag)
    for name, value in flags.items():
        if name not in reported:
            proven = _make_row_from_answers(name, value, engine, sources)
            rows.append(proven or _flag_row(name, value, engine, sources))
    rows += _env_rows(engine, env, sources)
    return InForceReport(run_id, tuple(_mask_row(row, secrets) for row in rows), sources.notes)


# ---- reading


class _EndpointAnswer(NamedTuple):
    """The answer to one HTTP request. `status` is None if there was no answer."""

    status: int | None
    body: bytes = b""


async def _ask_endpoints(
    run: WatchedRun, engine: Engine, notes: list[str]
) -> dict[str, _EndpointAnswer]:
    """Request the endpoints that report settings, and return their answers by path. A note about
    each request that fails is added to `notes`. Raises HostError if the server cannot be
    reached."""
    connection = await run.connection()

    async def get(path: str) -> _EndpointAnswer:
        reply = await connection.get(path, TIMEOUT_S)
        if reply.status is None:
            notes.append(f"{path} cannot be read: {reply.problem}")
        return _EndpointAnswer(reply.status, reply.text.encode())

    paths = (*_paths_reporting_settings(engine), *engine.config_paths, engine.metrics_path)
    wanted = list(dict.fromkeys(filter(None, paths)))
    return dict(zip(wanted, await asyncio.gather(*map(get, wanted)), strict=True))


def _paths_reporting_settings(engine: Engine) -> list[str]:
    named = [answer.info.partition(" ")[0] for answer in engine.answers if answer.info]
    return [path for path in dict.fromkeys(named) if not path.startswith("config")]


def _parse_answers_and_metrics(
    engine: Engine, http_answers: Mapping[str, _EndpointAnswer], notes: list[str]
) -> tuple[dict[str, Any], str]:
    """Return (JSON answers of the endpoints by path, text of the metrics page, "" without one).
    `http_answers` has the HTTP answers by path. The answer that lists the engine's settings gets
    the key "config" in place of its path. Notes about unusable answers are added to `notes`."""
    answers: dict[str, Any] = {}
    unused: list[str] = []
    for path in (*_paths_reporting_settings(engine), *engine.config_paths):
        status, body = http_answers.get(path, _EndpointAnswer(None))
        name = "config" if path in engine.config_paths else path
        if status is None or name in answers:
            continue
        document, problem = None, f"HTTP status {status}"
        if status == 200:
            document, problem = _parse_json_or_reason(body)
        if not problem:
            answers[name] = document
        elif name == path:
            notes.append(f"{path} answers {problem}")
        else:
            unused.append(f"{path} answers {problem}")
    if unused and "config" not in answers:
        notes += unused
    status, page = http_answers.get(engine.metrics_path or "", _EndpointAnswer(None))
    if status not in (200, None):
        note = f"{engine.metrics_path} answers HTTP status {status}"
        if engine.metrics_flag:
            note += f"; the server was started without --{engine.metrics_flag}"
        notes.append(note)
    if len(page) > MAX_ANSWER_BYTES:
        notes.append(f"{engine.metrics_path} answers {_too_long_reason(page)}")
    elif status == 200:
        return answers, page.decode("utf-8", "replace")
    return answers, ""


def _parse_json_or_reason(body: bytes) -> tuple[Any, str]:
    """Return (decoded JSON with its secrets masked, ""), or (None, reason why `body` cannot be
    used)."""
    if len(body) > MAX_ANSWER_BYTES:
        return None, _too_long_reason(body)
    try:
        return mask_data(clean_json(body)), ""
    except ValueError:
        return None, "no JSON"
    except RecursionError:
        return None, "JSON that is nested too deeply"


def _too_long_reason(body: bytes) -> str:
    return f"{len(body) / 2**20:.0f} MiB, more than the {MAX_ANSWER_BYTES >> 20} that are read"


def _settings_in_answer(answer: Any) -> dict[str, str]:
    """Return the settings in `answer`, the JSON answer of an endpoint, by flag name; {} if it is
    not an object. Settings of SGLang's gRPC gateway are nested in "server_args"."""
    inner = as_table(answer).get("server_args")
    settings = inner if isinstance(inner, dict) else as_table(answer)
    chosen = itertools.islice(settings.items(), MAX_SETTINGS)
    return {str(name).replace("_", "-"): _value_text(value) for name, value in chosen}


def _settings_in_log(log: Sequence[str], pattern: re.Pattern[str]) -> dict[str, str]:
    found = _find_first_match(pattern, log)
    if not found:
        return {}
    return parse_logged_settings(found[1])


def _find_first_match(pattern: re.Pattern[str] | str, log: Sequence[str]) -> re.Match[str] | None:
    return next(filter(None, (re.search(pattern, line) for line in log)), None)


# ---- rows


def _answer_row(answer: Answer, flags: Mapping[str, Any], sources: Sources) -> InForceRow:
    asked = _value_text(flags[answer.flag]) if answer.flag in flags else None
    value, where = _find_value_and_source(answer, sources)
    if value is None and answer.flag in sources.config:
        value, where = _value_text(sources.config[answer.flag]), sources.config_from
    return InForceRow("engine", answer.name, asked, value, where, _values_differ(asked, value))


def _find_value_and_source(answer: Answer, sources: Sources) -> tuple[str | None, str]:
    """Return (value that a source reports for a setting, name of the source); (None, "") if none
    does."""
    if answer.info:
        path, _, steps = answer.info.partition(" ")
        value = _find_in_document(sources.answers.get(path), steps)
        if value not in (None, ""):
            return _value_text(value), "server's answer" if path == "config" else path
    if answer.metric and (found := _find_metric_value(sources.metrics, answer.metric)) is not None:
        return _value_text(found), "/metrics"
    for pattern, text in answer.log:
        if match := _find_first_match(pattern, sources.log):
            return text.format(**match.groupdict()), "log"
    if answer.log_product and (factors := _find_first_match(answer.log_product, sources.log)):
        return str(math.prod(map(int, factors.groups()))), "log"
    return None, ""


def _find_in_document(document: Any, key_path: str) -> Any:
    """Return the value in a JSON document at `key_path`, such as "data.0.id"; None if there is
    none."""
    for step in key_path.split("."):
        if isinstance(document, list) and step.isdecimal():
            document = next(iter(document[int(step) :]), None)
        else:
            document = as_table(document).get(step)
    return document


def _find_metric_value(page: str, metric_name: str) -> str | None:
    """Return the number of the first sample of the metric `metric_name` on a Prometheus page, as
    text. For "metric{label}", return the value of that label. None if the page has no such sample,
    or if its value is no number or "None"."""
    name, _, label = metric_name.rstrip("}").partition("{")
    for sample in _METRIC_LINE.finditer(page):
        if sample["name"] != name:
            continue
        if not label:
            number = _parse_number(sample["value"])
            if number is None:
                return None
            return f"{number:g}"
        found = re.search(rf'[{{,]{re.escape(label)}="(?!None")([^"]+)"', sample["labels"])
        return found[1] if found else None
    return None


def _make_row_from_answers(
    name: str, value: Any, engine: Engine, sources: Sources
) -> InForceRow | None:
    """Return the row of a flag that the server proves by answering: the port, and the one that
    turns the metrics page on. None for any other flag, and without an answer."""
    if name == engine.metrics_flag and sources.metrics:
        proven, where = "on", engine.metrics_path or ""
    elif name == "port" and sources.port is not None:
        proven, where = str(sources.port), "the server answers there"
    else:
        return None
    asked = _value_text(value)
    return InForceRow("flag", name, asked, proven, where, _values_differ(asked, proven))


def _flag_row(name: str, value: Any, engine: Engine, sources: Sources) -> InForceRow:
    asked = _value_text(value)
    for settings, where in (
        (sources.config, sources.config_from),
        (sources.parsed, "log, as the engine parsed it"),
    ):
        if name in settings and not _is_truncated(settings[name]):
            value = _value_text(settings[name])
            return InForceRow("flag", name, asked, value, where, _values_differ(asked, value))
    argv = sources.process.argv if sources.process is not None else ()
    where = ""
    if engine.command_line_option(name) in [word.partition("=")[0] for word in argv]:
        where = "passed on the command line; the engine does not report it"
    return InForceRow("flag", name, asked, None, where)


def _env_rows(engine: Engine, env: Mapping[str, str], sources: Sources) -> list[InForceRow]:
    rows = []
    unknown: set[str] = set()
    if engine.unknown_env_log:
        matches = map(engine.unknown_env_log.search, sources.log)
        unknown = {match[1] for match in matches if match}
    present = sources.process.env if sources.process is not None else None
    place = f"environment of process {sources.pid}"
    for name, value in env.items():
        if name in unknown:
            found, where, differs = "unknown to the engine, no effect", "log", True
        elif present is None:
            found, where, differs = None, "", False
        elif name not in present:
            found, where, differs = "not set", place, True
        else:
            found, where = present[name], place
            differs = _env_differs(name, value, present[name])
        rows.append(InForceRow("env", name, value, found, where, differs))
    prefixes = tuple(filter(None, (*_VARIABLE_PREFIXES, engine.env_prefix)))
    for name, value in sorted((present or {}).items()):
        affects_engine = name.startswith(prefixes) or name in _OTHER_VARIABLES
        if affects_engine and name not in env:
            rows.append(InForceRow("env", name, None, value, place))
    return rows


def _env_differs(name: str, asked: str, actual: str) -> bool:
    if is_secret_name(name):
        return False
    return asked not in (MASK, actual, mask_text(actual))


def _mask_row(row: InForceRow, secrets: Sequence[str]) -> InForceRow:
    def mask_value(text: str | None) -> str | None:
        if not text:
            return text
        if is_secret_name(row.name):
            return MASK
        return clean_text(mask_text(text[:_MAX_PARSED_CHARACTERS], secrets), MAX_VALUE_CHARACTERS)

    return InForceRow(
        row.kind,
        clean_text(row.name),
        mask_value(row.asked),
        mask_value(row.in_force),
        row.where,
        row.differs,
    )


# ---- comparing


def _value_text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple):
        return " ".join(map(_value_text, value))
    if isinstance(value, dict):
        return json.dumps(value)
    return {"True": "on", "False": "off"}.get(str(value), str(value))


def _values_differ(asked: str | None, actual: str | None) -> bool:
    """Return whether the requested value `asked` and the actual value differ. False if one is
    unknown, if "auto" was asked, and for JSON objects and lists."""
    if not (_is_comparable(asked) and _is_comparable(actual)):
        return False
    a, b = _normalize_value(asked), _normalize_value(actual)
    if a in ("auto", "none", "", b) or asked.startswith(("{", "[")):
        return False
    x, y = _parse_number(asked), _parse_number(actual)
    if x is not None and y is not None:
        return not math.isclose(x, y, rel_tol=1e-6)
    if b.startswith(f"{a}_"):  # fp8 and fp8_e4m3
        return False
    return not (b.endswith(f"/{a}") or a.endswith(f"/{b}"))  # a path


def _normalize_value(text: str) -> str:
    word = (
        text.strip("'\"[] ").lower().removeprefix("torch.").replace("', '", " ").removesuffix("/")
    )
    return {"true": "on", "false": "off"}.get(word, word)


def _is_comparable(text: str | None) -> TypeGuard[str]:
    """Return whether a value is known in full: neither None, masked nor cut."""
    return text is not None and text != MASK and not _is_truncated(text)


def _is_truncated(text: str) -> bool:
    return text.endswith("more characters")


def _parse_number(text: str) -> float | None:
    text = text.replace(",", "")
    scale = _DECIMAL_SIZES.get(text[-1:]) or _BINARY_SIZES.get(text[-1:])
    try:
        return float(text[:-1]) * scale if scale else float(text)
    except ValueError:
        return None
