"""Whether a tune from the baseline of each write-up reaches what the write-up's best configuration
reaches, and proposes nothing that a correction of it forbids.

    python tests/benchmarks/bench_tune_documents.py [--tunes 5] [--seed 1] [--verbose]
    python tests/benchmarks/bench_tune_documents.py --goal users --limits 'tpot@p95<=30'

The session plans and carries out each tune on a simulated host. Its servers are simulated engines on a
clock of their own (tests/support/virtual_engine.py): the parser, the memory and the step times of
workbench/sim decide. Servers that are started alike differ by 1.5 %, and runs of one by 1 % (standard
deviations); "truth" is measured without this noise. Flags that the simulator gives no effect, such as
attention kernels or speculation, gain nothing here.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]

from support.forbidden_changes import forbidden  # noqa: E402
from support.made_results import result  # noqa: E402
from support.serving import free_port  # noqa: E402
from support.virtual_engine import Load, NotStarted, VirtualServer, attained  # noqa: E402

from workbench.engines.plan_context import PlanContext, list_visible_gpus  # noqa: E402
from workbench.model.bench import BenchResult  # noqa: E402
from workbench.model.errors import ServerError  # noqa: E402
from workbench.model.experiment import Arm, Experiment, ExperimentRun, ExperimentSpec  # noqa: E402
from workbench.model.server_run import ServerState  # noqa: E402
from workbench.model.slo import parse_slo  # noqa: E402
from workbench.model.sweep import Sweep  # noqa: E402
from workbench.model.tune_standings import format_entry_for_people  # noqa: E402
from workbench.session.bench.find_users import measure_user_capacity  # noqa: E402
from workbench.session.plans.plan_editor import PlanEditor  # noqa: E402
from workbench.session.series.sweep_progress import SweepProgress  # noqa: E402
from workbench.session.series.tune_plan import combination_or_problem_text  # noqa: E402
from workbench.session.session import Session  # noqa: E402

STARTS = 30
SERVER_PCT, RUN_PCT = 1.5, 1.0
EQUAL_PCT = 0.5  # the winner reaches the best if it is at most this much below
MISTRAL = (
    ("model", "/srv/models/Mistral-Large-Instruct-2411-AWQ"),
    ("triton_cache", "/srv/cache/triton"),
)
SPARKS = (
    ("head_ip", "192.168.100.1"),
    ("worker_ip", "192.168.100.2"),
    ("rdma_devices", "rocep1s0f1,roceP2p1s0f1"),
)


@dataclass(frozen=True)
class Case:
    """A baseline of a write-up, its best configuration, and the requests at a time."""

    profile: str
    baseline: str
    best: str
    streams: int
    variables: tuple[tuple[str, str], ...] = ()


CASES = (
    Case("four-pcie", "vllm-qwen3-vl-2b-tp4-eager", "vllm-qwen3-vl-2b-dp4", 8),
    Case("four-pcie", "vllm-qwen3-vl-2b-tp4-eager", "vllm-qwen3-vl-2b-dp4", 80),
    *(
        Case(
            "rtx-pro-6000",
            "sglang-mistral-large-awq-baseline",
            "sglang-mistral-large-awq-optimized",
            streams,
            MISTRAL,
        )
        for streams in (1, 8)
    ),
    *(
        Case(
            "rtx-5060ti-x2",
            "vllm-container-920-fp8-2x-5060ti",
            "vllm-llama-3.2-3b-fp8-dp2-5060ti",
            streams,
        )
        for streams in (1, 16)
    ),
    Case("rtx-5060ti-x2", "vllm-qwen2.5-7b-awq-2x-5060ti", "vllm-qwen2.5-7b-fp8-2x-5060ti", 16),
    Case("gb10-x2", "vllm-llama-3.3-70b-2x-spark-ray", "vllm-llama-3.3-70b-2x-spark", 1, SPARKS),
    Case("gb10-x2", "vllm-llama-3.3-70b-2x-spark", "vllm-llama-3.3-70b-2x-spark-batch", 16, SPARKS),
)


class VirtualServers:
    """The servers and benchmarks of a session, on a clock of their own, in place of processes."""

    def __init__(self, session: Session, case: Case, directory: Path, seed: int) -> None:
        self.session, self.case, self.directory = session, case, directory
        self.rng = random.Random(seed)
        self.on: dict[str, VirtualServer] = {}
        self.progress: SweepProgress | None = None
        self.base = session.plans.editor
        parts = session.sweeps._parts
        parts.servers.launch_unchecked_plan = self._launch  # type: ignore[method-assign,assignment]
        parts.servers.wait_ready = self._ready  # type: ignore[method-assign,assignment]
        parts.servers.stop_run_quietly = self._end  # type: ignore[method-assign,assignment]
        parts.bench.benchmark_run = self._bench  # type: ignore[method-assign,assignment]
        parts.experiments.run_experiment = self._compare  # type: ignore[method-assign,assignment]

    def server(self, editor: PlanEditor, *, noise: bool = True) -> VirtualServer:
        """Start the server of a plan. Raises NotStarted if its engine would not start."""
        nodes = editor.node_commands()
        command = nodes[0][1] if nodes else editor.launch_command()
        return VirtualServer(
            self.case.profile,
            editor.plan.engine,
            _words(command.argv),
            self.directory,
            self.rng,
            SERVER_PCT if noise else 0.0,
            RUN_PCT if noise else 0.0,
        )

    def load(self, shape: Mapping[str, Any]) -> Load:
        spec = self.session.sweeps._parts.load.make_spec(self.base.plan.preset_id, dict(shape))
        return Load(spec.concurrency, spec.requests, spec.input_tokens, spec.max_tokens)

    def result(self, server: VirtualServer, shape: Mapping[str, Any]) -> int:
        run = server.run(self.load(shape))
        plain = result(1)
        assert plain.summary.ttft_ms is not None
        limits = parse_slo(str(shape.get("slo") or ""))
        summary = replace(
            plain.summary,
            output_tok_s=run.tok_s,
            ttft_ms=replace(plain.summary.ttft_ms, p50=run.ttft_p50_ms),
            requests_ok=len(run.ttft_ms),
            requests_failed=0,
            errors={},
            slo=tuple(attained(run, limit) for limit in limits),
            goodput_request_s=run.goodput(limits) if limits else None,
        )
        return self.session.results.db.add(plain.spec, plain.conditions, summary)

    async def _launch(self, editor: PlanEditor, note_run_id: object = None) -> Any:
        try:
            server = self.server(editor)
        except NotStarted as failure:
            raise ServerError(str(failure)) from None
        run_id = f"virtual-{len(self.on)}"
        self.on[run_id] = server
        return type("Status", (), {"run_id": run_id})

    async def _ready(self, run_id: str) -> Any:
        return type("Status", (), {"state": ServerState.READY})

    async def _end(self, run_id: str) -> None:
        return None

    async def _bench(self, run_id: str, **shape: Any) -> int:
        return self.result(self.on[run_id], shape)

    async def _compare(
        self, a: Arm, b: Arm, *, on_experiment_stored: Any, **options: Any
    ) -> Experiment:
        options.pop("quality_texts", None)
        assert self.progress is not None
        spec = ExperimentSpec(a, b, {}, **options)
        bed = _Bed(self, spec)
        return await self.session.experiments.run_sweep_experiment(spec, bed, self.progress)


class _Bed:
    """The servers of the final (TestBed)."""

    started_run_id: str | None = None

    def __init__(self, servers: VirtualServers, spec: ExperimentSpec) -> None:
        self.servers, self.shape, self.metric = servers, spec.bench, spec.metric
        self.editors = {"A": servers.base, "B": _editor(servers.base, spec.b.sets)}
        self.now: VirtualServer | None = None

    async def must_compile_first(self, arm: str) -> bool:
        return False

    async def start_or_reuse_server(self, arm: str, note_run_id: object) -> str:
        self.now = self.servers.server(self.editors[arm])
        return arm

    async def await_server_and_apply_settings(self, arm: str, run_id: str, tell: Any) -> None:
        return None

    async def stop_server_and_revert_settings(self) -> None:
        return None

    async def wait_then_read_temperature_c(
        self, target_c: float | None, within_c: float, tell: Any
    ) -> float | None:
        return None

    async def read_start_s_and_settings(
        self, arm: str, run_id: str
    ) -> tuple[float | None, Mapping[str, str]]:
        return None, {}

    async def run_benchmark(self, arm: str, run: ExperimentRun, seed: int) -> BenchResult:
        assert self.now is not None
        now = self.now

        async def bench(**shape: Any) -> int:
            return self.servers.result(now, shape)

        results = self.servers.session.results
        searches = measure_user_capacity(bench, results, self.shape)
        number = await (searches if self.metric == "users" else bench(**self.shape))
        return await self.servers.session.results.get(number)

    async def restore_host_and_report(self, experiment: Experiment) -> Sequence[str]:
        return ()


def _words(argv: Sequence[str]) -> Sequence[str]:
    """Return a command line without what wraps the engine's program."""
    place = next((n for n, word in enumerate(argv) if word.rpartition("/")[2] in _PROGRAMS), 0)
    return argv[place:]


_PROGRAMS = ("vllm", "sglang", "llama-server")


def _editor(base: PlanEditor, entry: Sequence[str]) -> PlanEditor:
    found = combination_or_problem_text(base, entry)
    assert not isinstance(found, str), found
    return found.editor


@dataclass
class Row:
    """What one tune has found. The speeds are the truth, in tok/s."""

    case: Case
    baseline: float
    best: float
    winner: float
    name: str
    said: str
    forbidden: list[str]

    @property
    def reached(self) -> bool:
        return self.winner >= self.best * (1 - EQUAL_PCT / 100)


async def tuned(
    case: Case,
    seed: int,
    directory: Path,
    *,
    goal: str = "tok_s",
    limits: str = "",
    verbose: bool = False,
) -> Row:
    """Carry out one tune and return what it has found."""
    session = Session.of_host(None, case.profile)
    try:
        await session.link.connect()
        session.core.update(telemetry=await session.telemetry.get_recent_reading())
        shape = {"concurrency": case.streams}
        best_editor = await _loaded(session, case.best, case)
        await _loaded(session, case.baseline, case)
        servers = VirtualServers(session, case, directory, seed)

        def truth(editor: PlanEditor) -> float:
            return servers.server(editor, noise=False).run(servers.load(shape)).tok_s

        planned = await session.sweeps.plan_tune(
            goal, limits, starts=STARTS, quality=False, **shape
        )
        assert planned.spec.tune is not None
        if verbose:
            for one in planned.spec.tune.candidates:
                print(
                    "  ",
                    format_entry_for_people(one.sets),
                    f"{truth(_editor(servers.base, one.sets)):.1f}",
                )
            for left in planned.spec.tune.left_out:
                print("   left out:", left.words, "-", left.reason)
        design = planned.make_design

        def with_progress(progress: SweepProgress) -> Any:
            servers.progress = progress
            return design(progress)

        sweep = await session.sweeps.run_tune(replace(planned, make_design=with_progress))
        if verbose:
            print("\n".join(f"   {note}" for note in sweep.notes), sweep.error or "")
        entry = winner_of(sweep, await _final(session, sweep))
        context = _plan_context(servers.base)
        candidates = planned.spec.tune.candidates
        return Row(
            case,
            truth(servers.base),
            truth(best_editor),
            truth(_editor(servers.base, entry)),
            format_entry_for_people(entry),
            sweep.knee_text,
            forbidden(context, case.streams, goal, candidates),
        )
    finally:
        await session.close()


async def _loaded(session: Session, preset: str, case: Case) -> PlanEditor:
    """Load a preset, with a port that nothing uses, and return its editor."""
    names = session.presets.get(preset).variables
    known = {name: value for name, value in case.variables if name in names}
    await session.plans.load_preset(preset, known)
    await session.plans.locate_engine()
    session.plans.editor.set_flag("port", str(free_port()))
    return session.plans.editor


def _plan_context(editor: PlanEditor) -> PlanContext:
    plan, host_context = editor.effective_plan, editor.host_context
    gpus = list_visible_gpus(plan, host_context.gpus)
    return PlanContext(plan, editor.catalog, editor.engine, gpus, host_context.installed_version)


async def _final(session: Session, sweep: Sweep) -> Experiment | None:
    if sweep.experiment_id is None:
        return None
    return await session.experiments.get(sweep.experiment_id)


def winner_of(sweep: Sweep, final: Experiment | None) -> tuple[str, ...]:
    """Return what a tune recommends: the changes that its final has confirmed, or none."""
    if final is None or not sweep.confirmed:
        return ()
    return tuple(final.spec.b.sets)


def report(rows: Sequence[Row]) -> None:
    head = ("profile", "streams", "baseline", "best of document", "winner", "reached", "forbidden")
    print(("| " + " | ".join(head) + " |").replace("best of document", "document's best"))
    print("|" + "---|" * len(head))
    for case in dict.fromkeys(row.case for row in rows):
        own = [row for row in rows if row.case == case]
        names = dict.fromkeys(row.name for row in own)
        winner = f"{fmean(row.winner for row in own):.1f} {', '.join(names)}"
        cells = (
            case.profile,
            str(case.streams),
            f"{own[0].baseline:.1f} {case.baseline}",
            f"{own[0].best:.1f} {case.best}",
            winner,
            f"{sum(row.reached for row in own)} of {len(own)}",
            "; ".join(dict.fromkeys(word for row in own for word in row.forbidden)) or "none",
        )
        print("| " + " | ".join(cells) + " |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tunes", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="profiles whose name has this text")
    parser.add_argument("--goal", default="tok_s")
    parser.add_argument("--limits", default="", help="as --subject-to of `workbench tune`")
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    rows = []
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for name in ("CONFIG", "DATA", "STATE", "CACHE"):
            os.environ[f"XDG_{name}_HOME"] = str(home / name.lower())
        for case in CASES:
            if arguments.only not in case.profile:
                continue
            for number in range(arguments.tunes):
                seed = arguments.seed + number
                driver = home / "driver" / case.profile
                options = {name: getattr(arguments, name) for name in ("goal", "limits", "verbose")}
                row = asyncio.run(tuned(case, seed, driver, **options))
                rows.append(row)
                print(f"{case.profile} {case.streams}: {row.said}", file=sys.stderr)
    report(rows)
    return 0 if all(row.reached and not row.forbidden for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
