"""A scripted Session: canned states, every call recorded, telemetry made from a fixed formula. No
host, no files."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from support.fake_canned import (
    NOW,
    canned_comparison,
    canned_experiment,
    canned_result,
    canned_sweep,
    canned_tune,
    guard,
)
from support.fake_measuring import FakeMeasuring

from workbench import engines
from workbench.model.alerts import RULES, RuleView
from workbench.model.bench import BenchProgress, BenchSpec, Comparison
from workbench.model.errors import InputError
from workbench.model.findings import Finding, Level
from workbench.model.flags import FlagKind, FlagRow, FlagSpec, Origin
from workbench.model.gpu import DriverInfo, GpuInfo, GpuSample, HostSample, Telemetry
from workbench.model.gpu_readings import READINGS
from workbench.model.plan import Command, LaunchPlan, PlanDifference, plan_differences
from workbench.model.quality import QualityResult
from workbench.model.secrets import mask_command, mask_row, mask_secrets_of_plan
from workbench.model.server_run import ServerState, ServerStatus
from workbench.model.settings import GpuSettings
from workbench.model.timeline import History
from workbench.server import log_patterns
from workbench.session.bench.row import BenchRow, CeilingView
from workbench.session.history.timeline import MORE_GPU_FIELDS
from workbench.session.hosts.names import KnownHost
from workbench.session.results.advice import AdvisedResult
from workbench.session.state import (
    Activity,
    BenchState,
    HostView,
    Notice,
    PlanView,
    PresetEntry,
    SessionState,
)
from workbench.store.config_schema import AlertsConfig

GIB = 1024**3

SPECS = {
    s.name: s
    for s in (
        FlagSpec(
            "data-parallel-size",
            FlagKind.INT,
            ("-dp",),
            default=1,
            minimum=1,
            help="Number of data parallel groups. MoE layers are sharded by tensor times data "
            "parallel size.",
        ),
        FlagSpec(
            "max-num-seqs",
            FlagKind.INT,
            default=256,
            minimum=1,
            help="Maximum number of sequences per iteration. More raises throughput and KV cache "
            "use; "
            "time to first token may rise.",
        ),
        FlagSpec(
            "max-num-batched-tokens",
            FlagKind.INT,
            default=8192,
            minimum=1,
            human_readable_int=True,
            help="Maximum number of batched tokens per iteration.",
        ),
        FlagSpec(
            "gpu-memory-utilization",
            FlagKind.FLOAT,
            default=0.9,
            minimum=0,
            maximum=1,
            help="Fraction of GPU memory for the model executor.",
        ),
        FlagSpec(
            "kv-cache-dtype",
            FlagKind.STR,
            choices=("auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2"),
            default="auto",
            help="Data type of the KV cache.",
        ),
        FlagSpec(
            "enforce-eager",
            FlagKind.BOOL,
            negation="--no-enforce-eager",
            default=False,
            help="Always use eager mode: no CUDA graphs.",
        ),
        FlagSpec(
            "max-model-len",
            FlagKind.INT,
            default=None,
            human_readable_int=True,
            help="Model context length.",
        ),
        FlagSpec(
            "speculative-config", FlagKind.JSON, json_fields=("method", "model"), help="JSON."
        ),
        FlagSpec(
            "tensor-parallel-size",
            FlagKind.INT,
            ("-tp",),
            default=1,
            minimum=1,
            help="Tensor parallel groups.",
        ),
        FlagSpec("port", FlagKind.INT, default=8000, minimum=1, maximum=65535, help="Port."),
    )
}

PRESETS = (
    PresetEntry(
        "qwen3-vl-2b-tp4-eager",
        "Qwen3-VL-2B, TP=4, eager: the baseline",
        "vllm",
        "4 x PCIe GPU",
        "corrected",
        summary="Four-way tensor parallel for a 2B model: every layer waits for the slowest PCIe "
        "link.",
        caveats=3,
        fits=True,
    ),
    PresetEntry(
        "qwen3-vl-2b-dp4",
        "Qwen3-VL-2B, one copy per GPU",
        "vllm",
        "4 x PCIe GPU",
        "corrected",
        caveats=2,
        summary="The model fits one GPU many times over: four copies, no communication.",
        baseline="qwen3-vl-2b-tp4-eager",
        fits=True,
    ),
    PresetEntry(
        "qwen3-vl-2b-tp2-dp2",
        "Qwen3-VL-2B, TP=2 x DP=2",
        "vllm",
        "4 x PCIe GPU",
        "documented",
        fits=True,
    ),
    PresetEntry(
        "llama-3.3-70b-2x-spark",
        "Llama-3.3-70B over two DGX Sparks",
        "vllm",
        "2 x GB10",
        "documented",
        caveats=5,
        fits=False,
    ),
    PresetEntry(
        "mistral-large-awq-sglang",
        "Mistral-Large AWQ, SGLang baseline",
        "sglang",
        "RTX PRO 6000",
        "corrected",
        caveats=4,
        fits=False,
    ),
    PresetEntry(
        "mistral-large-awq-sglang-opt",
        "Mistral-Large AWQ, SGLang optimized",
        "sglang",
        "RTX PRO 6000",
        "corrected",
        fits=False,
    ),
    PresetEntry(
        "mistral-large-awq-tabby",
        "Mistral-Large on TabbyAPI",
        "tabbyapi",
        "RTX PRO 6000",
        "documented",
    ),
    PresetEntry(
        "mine",
        "broken one",
        "vllm",
        "",
        "untested",
        own=True,
        path="mine.toml",
        problem="line 7: flags.max-num-seqs: expected a value, got nothing",
    ),
)

LOG_LINES = (
    "INFO 11-21 12:03:07 [api_server.py:1044] vLLM API server version 0.33.0",
    "INFO 11-21 12:03:09 [config.py:604] Resolved architecture: Qwen3VLForConditionalGeneration",
    "INFO 11-21 12:03:31 [default_loader.py:262] Loading weights took 3.21 seconds",
    "WARNING 11-21 12:03:33 [cudagraph.py:88] capturing 67 graph sizes",
    "INFO 11-21 12:03:40 [kv_cache_utils.py:833] GPU KV cache size: 1,048,576 tokens",
    "INFO 11-21 12:04:05 [api_server.py:1213] Application startup complete.",
    "INFO 11-21 12:04:11 [loggers.py:116] Engine 000: Avg prompt throughput: 312.4 tokens/s",
)


def fresh() -> float:
    """Return a time for a reading that does not look old even on a slow machine."""
    return time.monotonic() + 3600.0


class FakeLog:
    """A log kept in a list; a word in a line decides its level."""

    def __init__(self, lines: Sequence[str] = ()) -> None:
        self.kept = list(lines)

    def __len__(self) -> int:
        return len(self.kept)

    def lines(self, start: int, count: int) -> Sequence[str]:
        return self.kept[start : start + count]

    def level_of_line(self, line: str) -> str:
        head = line[:40]
        return (
            "error"
            if "ERROR" in head
            else "warn"
            if "WARN" in head
            else "info"
            if "INFO" in head
            else ""
        )

    def explain(self, line: str, engine: str) -> Finding | None:
        return log_patterns.explain_line(line, engine)

    def find_line_number(self, text: str, start: int, backwards: bool = False) -> int | None:
        order = (
            range(min(start, len(self.kept) - 1), -1, -1)
            if backwards
            else range(start, len(self.kept))
        )
        return next((i for i in order if text.lower() in self.kept[i].lower()), None)


class FakePart(SimpleNamespace):
    """A part of the scripted session; the session itself has the methods."""


# part: its method = the scripted session's method, if that has another name
PARTS = {
    "presets": "get=preset missing_variables",
    "plans": "load_preset set_flag unset_flag set_executable set_env unset_env undo redo flag_rows"
    " preset_texts_about_flag=notes_about estimate_change"
    " untrusted_findings trust_preset_parts=trust write_preset_file=save_preset script "
    "preset_gpu_settings",
    "servers": "start stop find_start_problem find_start_warnings restart_replaced_server=go_back "
    "find_external_servers select=select_run "
    "find_numbered_log_lines=search_log "
    "changes_against_running running_plan=plan_that_runs changed_flags_of_running_server",
    "results": "get=result delete=delete_result toggle_comparison_mark=mark compare export_result "
    "compare_result_under_cursor=follow show_matching_results=find_results set_result_note=note_result"
    " set_result_tags=tag_result",
    "bench": "benchmark_selected_run=run_bench default_spec=bench_defaults default_spec_fields=bench_shape "
    "profile_titles_and_fields=bench_profiles "
    "cancel=cancel_bench"
    " restart_and_compare_results=restart_bench_compare answer_comparison_cost_text=restart_answers_cost",
    "gpu": "plan_setting_commands=plan_gpu apply_settings=apply_gpu revert_settings=revert_gpu "
    "gpu_processes warnings_without_guard"
    " add_notes_about_other_setters=marked_commands",
    "guard": "confirm_trial_settings=confirm_gpu leave_settings_on_unguarded=keep_gpu record_screen_drawn=alive",
    "gpu_verifier": "verify_and_report_lines=verify_gpu probe_commands",
    "experiments": "run_experiment=experiment resume=resume_experiment stop=stop_experiment "
    "list=list_experiments"
    " get=experiment_called estimate_duration_s=experiment_estimate_s"
    " answer_comparison_cost_text=experiment_quality_cost"
    " doubtful_value_warnings=experiment_value_warnings"
    " preview_setting_changes=experiment_setting_changes",
    "advisor": "advise_on_result=advice_on",
    "sweeps": "run_gpu_setting_sweep=gpu_sweep list_gpu_sweep_commands=plan_gpu_sweep "
    "list_resume_commands=plan_sweep_resume "
    "run_concurrency_sweep=concurrency_sweep run_flag_sweep=flag_sweep "
    "resume=resume_sweep"
    " cancel=cancel_sweep check_flags_can_be_swept=check_swept_flags plan_tune"
    " estimate_tune_cost=tune_cost tune_load_text=tune_load run_tune",
    "screen_memory": "load_activity_log=read_activity last_form_values=last_form store_form",
    "hosts": "known_hosts=known_hosts add_host_entry=add_host",
}


class FakeSession(FakeMeasuring):
    """A scripted session. `calls` records (method, arguments) in order. `push(field=value)` changes
    the state as the real session would."""

    def __init__(self, gpus: int = 1, simulated: bool = True, **fields: Any) -> None:
        self.gpu_count, self.ticks, self.interval_s = gpus, 100, 1.0
        self.simulated = simulated
        self.added_hosts: list[KnownHost] = []
        self.calls: list[tuple[Any, ...]] = []
        self.listeners: list[Callable[[SessionState, frozenset[str]], None]] = []
        self.log = FakeLog()
        self.link = FakePart(ask=None)
        self.alerts = FakePart(
            rule_rows=lambda: [RuleView(rule, rule.limits) for rule in RULES.values()],
            active=tuple,
            raise_test_alert=lambda: self._called("test_alert"),
            config=AlertsConfig(),
            webhook=None,
        )
        for name, methods in PARTS.items():
            pairs = (method.partition("=") for method in methods.split())
            setattr(
                self, name, FakePart(**{new: getattr(self, old or new) for new, _, old in pairs})
            )
        self.plans.start_importing_modules = lambda: None
        self.gpu.guard, self.bench.asked = self.guard, None
        self.servers.supervisor = FakePart(installed_unit_name=lambda run_id: None)
        self.results.has_older = False
        self.results.timelines = FakePart(get=self.no_timeline)
        self.answers_cost = ""  # of a restart
        self.compared: tuple[QualityResult, ...] = ()  # comparisons of answers, newest first
        self.results.list_quality_results = self.quality_comparisons
        # the time of the readings
        self.timeline = FakePart(history=History(clock=lambda: NOW + self.ticks))
        self.missing: dict[str, Mapping[str, Any]] = {}
        self.past: list[LaunchPlan] = []
        self.future: list[LaunchPlan] = []
        self.running_plan: LaunchPlan | None = None
        self.load = 1.0
        self.fail: dict[str, Exception] = {}
        host = HostView(
            "four-pcie" if simulated else "box",
            link="connected",
            simulated="four-pcie" if simulated else None,
        )
        self.state = SessionState(host=host, presets=PRESETS, servers_read=True, results_read=True)
        self.state = replace(
            self.state, telemetry=self.telemetry(), telemetry_monotonic_s=fresh(), **fields
        )
        for tick in range(self.ticks - 60, self.ticks + 1):
            self.remember(tick)

    def remember(self, tick: int) -> None:
        """Put the readings of a tick into the history, one tick per second from NOW on."""
        for sample in (self.sample(index, tick) for index in range(self.gpu_count)):
            values = {
                (sample.index, name): getattr(sample, name)
                for name in (*READINGS, *MORE_GPU_FIELDS)
            }
            self.timeline.history.add_reading_to_seconds(
                values, range(int(NOW) + tick, int(NOW) + tick + 1)
            )

    # driving it
    def push(self, **fields: Any) -> None:
        self.state = replace(self.state, **fields)
        for listener in list(self.listeners):
            listener(self.state, frozenset(fields))

    def tick(self) -> None:
        self.ticks += 1
        self.remember(self.ticks)
        self.push(telemetry=self.telemetry(), telemetry_monotonic_s=fresh())

    async def tick_for_ever(self, interval_s: float) -> None:
        self.interval_s = interval_s
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due += interval_s
            await asyncio.sleep(max(0.0, due - loop.time()))
            self.tick()

    def log_lines(self, lines: Sequence[str]) -> None:
        self.log.kept.extend(lines)
        self.push(log_revision=self.state.log_revision + 1)

    def notice(self, level: Level, text: str, next_step: str | None = None) -> None:
        number = self.state.notice.number + 1 if self.state.notice else 1
        self.push(notice=Notice(number, level, text, next_step))

    def _called(self, name: str, *arguments: Any) -> None:
        self.calls.append((name, *arguments))
        if name in self.fail:
            raise self.fail.pop(name)

    def called(self, name: str) -> list[tuple[Any, ...]]:
        return [c for c in self.calls if c[0] == name]

    def sample(self, index: int, tick: int) -> GpuSample:
        wave = 0.5 + 0.5 * math.sin(tick / 7 + index)
        busy = self.load * (0.86 + 0.14 * wave)
        return GpuSample(
            index=index,
            uuid=f"GPU-{index:04d}",
            sm_mhz=int(2100 + 690 * busy),
            memory_mhz=13365,
            power_w=90 + 510 * busy,
            power_average_w=90 + 505 * busy,
            power_limit_w=600.0,
            power_limit_enforced_w=600.0,
            gpu_util_pct=round(100 * busy),
            memory_util_pct=round(70 * busy),
            memory_used_bytes=int((60 + 20 * busy) * GIB),
            memory_total_bytes=96 * GIB,
            temperature_c=round(40 + 38 * busy),
            fan_pct=None,
            pstate=1,
            event_reasons=(),
            pcie_gen=5,
            pcie_width=16,
            pcie_rx_mb_s=1800 * wave,
            pcie_tx_mb_s=240 * wave,
            energy_j=1e6 + tick * 500.0,
            persistence=True,
            absent={"fan_pct": "not supported"},
        )

    def telemetry(self) -> Telemetry:
        infos = tuple(
            GpuInfo(
                i,
                f"GPU-{i:04d}",
                "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
                sm_max_mhz=3090,
                memory_max_mhz=14001,
                power_default_w=600,
                power_min_w=300,
                power_max_w=600,
                memory_total_bytes=96 * GIB,
                pcie_gen_max=5,
                pcie_width_max=16,
                temperature_slowdown_c=92,
            )
            for i in range(self.gpu_count)
        )
        t_s = self.ticks * self.interval_s
        host = HostSample(256 * GIB, 200 * GIB, "performance", 2.5, 32)
        return Telemetry(
            t_s,
            NOW + t_s,
            DriverInfo(driver_version="595.71.05", cuda_version="13.1"),
            host,
            infos,
            tuple(self.sample(i, self.ticks) for i in range(self.gpu_count)),
            self.simulated,
        )

    # the API
    def subscribe(
        self, listener: Callable[[SessionState, frozenset[str]], None]
    ) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    async def open(self, *, early: bool = False) -> None:
        if not early:
            self._called("open")

    async def close(self) -> None:
        self._called("close")

    def preset(self, preset_id: str) -> Any:
        from workbench.model.preset import Preset

        self._called("preset", preset_id)
        return Preset.model_validate(
            {
                "schema": 1,
                "id": preset_id,
                "title": "Qwen3-VL-2B, one copy per GPU",
                "summary": "Four copies.",
                "hardware": {"gpu_names": ["RTX PRO 6000"], "count": 4},
                "engine": {"name": "vllm", "versions": ">=0.14"},
                "model": {"id": "Qwen/Qwen3-VL-2B-Instruct"},
                "caveats": ["Each copy has its own KV cache."],
                "claims": [
                    {
                        "text": "TP=4 is 4x faster",
                        "verdict": "false",
                        "correct": "PCIe limits it",
                        "basis": "arithmetic",
                    }
                ],
                "references": [
                    {
                        "metric": "output",
                        "value": 8610,
                        "unit": "tok/s",
                        "conditions": "concurrency 64",
                        "status": "claimed by the document",
                        "source": "guide",
                    }
                ],
                "provenance": {"document": "guide.md", "status": "corrected"},
            }
        )

    def missing_variables(self, preset_id: str) -> Mapping[str, Any]:
        return self.missing.get(preset_id, {})

    async def load_preset(self, preset_id: str, variables: Mapping[str, str] | None = None) -> None:
        self._called("load_preset", preset_id, dict(variables) if variables else None)
        plan = LaunchPlan(
            "vllm",
            "Qwen/Qwen3-VL-2B-Instruct",
            preset_id=preset_id,
            variables=dict(variables or {}),
        )
        for name, value in (
            ("data-parallel-size", 4),
            ("max-num-seqs", 512),
            ("max-num-batched-tokens", 16384),
            ("gpu-memory-utilization", 0.92),
            ("kv-cache-dtype", "fp8"),
        ):
            plan = plan.with_flag(name, value, Origin.PRESET)
        plan = plan.with_env("HF_TOKEN", "hf_secret", Origin.PRESET)
        self.past, self.future = [], []
        self._plan(plan)

    def _plan(self, plan: LaunchPlan) -> None:
        rows = [
            FlagRow(
                f.name,
                f.value,
                SPECS[f.name].default if f.name in SPECS else None,
                f.origin,
                SPECS.get(f.name),
                "est. KV cache fits 214 full-length sequences"
                if f.name == "max-num-seqs"
                else None,
                "warn" if f.name == "max-num-seqs" else None,
            )
            for f in plan.flags
        ]
        rows += [FlagRow(e.name, e.value, None, e.origin, None, is_env=True) for e in plan.env]
        argv = ["vllm", "serve", plan.model]
        for f in plan.flags:
            argv += [f"--{f.name}"] if f.value is True else [f"--{f.name}", str(f.value)]
        finding = Finding(
            Level.WARN,
            "memory.kv",
            "est. KV cache fits 214 full-length sequences",
            "max-num-seqs",
            "lower max-num-seqs to 214 or max-model-len",
        )
        command = Command(tuple(argv), {e.name: str(e.value) for e in plan.env})
        base = self.past[0] if self.past else plan
        self.push(
            plan=PlanView(
                plan,  # its edits start from here: this one keeps its secrets
                tuple(map(mask_row, rows)),
                (finding,),
                mask_command(command),
                "0.33.0",
                361,
                installed="vllm 0.33.0",
                changes=plan_differences(base, plan),
                memory="memory est. 21.4/24.0 GiB per GPU",
                can_undo=bool(self.past),
                can_redo=bool(self.future),
                title="Qwen3-VL-2B, one copy per GPU",
            )
        )

    def _edit(self, plan: LaunchPlan) -> None:
        assert self.state.plan is not None
        self.past.append(self.state.plan.plan)
        self.future.clear()
        self._plan(plan)

    @property
    def plan(self) -> LaunchPlan:
        assert self.state.plan is not None
        return self.state.plan.plan

    def set_flag(self, name: str, text: str) -> None:
        self._called("set_flag", name, text)
        spec = SPECS.get(name)
        value: Any = text
        if spec is not None and spec.kind is FlagKind.INT:
            if not text.isdigit():
                raise InputError(
                    f"{name}: expected a whole number, got “{text}”", next_step="type a number"
                )
            value = int(text)
        elif spec is not None and spec.kind is FlagKind.BOOL:
            value = text == "on"
        self._edit(self.plan.with_flag(name, value))

    def unset_flag(self, name: str) -> None:
        self._called("unset_flag", name)
        self._edit(self.plan.without_flag(name))

    async def find_external_servers(self) -> Sequence[Any]:
        return ()

    async def set_executable(self, text: str, *, for_later_plans: bool = False) -> None:
        self._called("set_executable", text, for_later_plans)

    def set_env(self, name: str, value: str) -> None:
        self._called("set_env", name, value)
        self._edit(self.plan.with_env(name, value))

    def unset_env(self, name: str) -> None:
        self._called("unset_env", name)
        self._edit(self.plan.without_env(name))

    def undo(self) -> None:
        self._called("undo")
        self.future.append(self.plan)
        self._plan(self.past.pop())

    def redo(self) -> None:
        self._called("redo")
        self.past.append(self.plan)
        self._plan(self.future.pop())

    def notes_about(self, name: str) -> Sequence[str]:
        return ()

    def estimate_change(self, name: str, text: str) -> str:
        return f"est. with {name}={text}"

    def flag_rows(self, view: str = "changed", query: str = "") -> Sequence[FlagRow]:
        assert self.state.plan is not None
        present = {r.name: r for r in self.state.plan.rows}
        rows = [
            present.get(n) or FlagRow(n, None, s.default, Origin.DEFAULT, s)
            for n, s in SPECS.items()
        ]
        if query:
            letters = query.lower().replace(" ", "")

            def matches(name: str) -> bool:
                rest = iter(name)
                return all(c in rest for c in letters)

            initials = [
                r for r in rows if "".join(w[0] for w in r.name.split("-")).startswith(letters)
            ]
            found = [r for r in rows if matches(r.name)]
            return [*initials, *(r for r in found if r not in initials)]
        return rows if view == "all" else self.state.plan.rows

    def untrusted_findings(self) -> Sequence[Finding]:
        return ()

    def trust(self) -> None:
        self._called("trust")

    def check_swept_flags(self, flags: Mapping[str, Sequence[str]]) -> None:
        pass

    async def find_start_problem(self) -> Finding | None:
        return None

    async def find_start_warnings(self) -> Sequence[Finding]:
        return ()

    def spawn_session_task(self, work: Any) -> Any:
        return asyncio.ensure_future(work)

    async def finish_benchmarks_without_screen(self) -> None:
        self._called("finish_benchmarks_without_screen")

    async def go_back(self) -> str:
        self._called("go_back")
        return "run"

    def changes_against_running(self) -> Sequence[PlanDifference]:
        return plan_differences(self.running_plan, self.plan) if self.running_plan else ()

    def plan_that_runs(self) -> LaunchPlan | None:
        return self.running_plan

    def changed_flags_of_running_server(self) -> Sequence[FlagRow]:
        running = self.running_plan
        if running is None:
            return ()
        catalog = engines.get_engine(running.engine).catalog()
        return engines.list_changed_flags(mask_secrets_of_plan(running), catalog)

    async def save_preset(self, preset_id: str, title: str) -> str:
        self._called("save_preset", preset_id, title)
        return f"presets/{preset_id}.toml"

    def script(self) -> str:
        return "#!/bin/sh\nexec vllm serve\n"

    def server(
        self, state: ServerState, run_id: str = "20261121-120300-vllm-3f2a", **fields: Any
    ) -> ServerStatus:
        base = ServerStatus(
            run_id,
            "vllm",
            state,
            self.state.host.name,
            "Qwen/Qwen3-VL-2B-Instruct",
            port=8000,
            url="http://127.0.0.1:8000",
            pid=4242,
            simulated=self.simulated,
        )
        return replace(base, **fields)

    def show_server(self, state: ServerState, **fields: Any) -> None:
        server = self.server(state, **fields)
        self.push(servers=(server,), run_id=server.run_id)

    async def start(self) -> str:
        self._called("start")
        self.running_plan = self.plan
        run = f"20261121-1203{len(self.called('start')):02d}-vllm-3f2a"
        self.log.kept = list(LOG_LINES[:3])
        self.show_server(
            ServerState.STARTING, run_id=run, phase="loading weights", started_unix_s=time.time()
        )
        self.log_lines(LOG_LINES[3:])
        self.show_server(
            ServerState.READY, run_id=run, started_unix_s=time.time() - 58, ready_unix_s=time.time()
        )
        return run

    async def stop(self, run_id: str | None = None) -> None:
        self._called("stop", run_id)
        self.show_server(ServerState.STOPPED)

    async def select_run(self, run_id: str) -> None:
        self._called("select_run", run_id)
        self.push(run_id=run_id)

    def row(self, number: int, label: str, tok_s: float, **fields: Any) -> BenchRow:
        base = BenchRow(
            number,
            NOW + number * 60,
            label,
            "Qwen/Qwen3-VL-2B-Instruct",
            "vllm",
            8,
            tok_s,
            212.0,
            890.0,
            21.4,
            603.0,
            tok_s / 603.0,
            64,
            0,
            self.simulated,
            "qwen3-vl-2b-dp4",
        )
        return replace(base, **fields)

    async def run_bench(self, **overrides: Any) -> int | None:
        self._called("bench", overrides)
        number = 41 + len(self.called("bench")) - 1
        seqs = self.plan.flag("max-num-seqs") if self.state.plan else None
        row = self.row(number, f"max-num-seqs={seqs}", 5812.0 if number == 41 else 6731.0)
        spec = BenchSpec("http://127.0.0.1:8000", "m", **overrides)
        self.bench.asked = spec
        self.push(results=(*self.state.results, row), bench=BenchState(spec=spec, last_id=number))
        return number

    def bench_defaults(self) -> BenchSpec:
        return self.state.bench.spec or BenchSpec(url="", model="")

    async def cancel_bench(self) -> None:
        self._called("cancel_bench")

    async def result(self, result_id: int) -> Any:
        self._called("result", result_id)
        return canned_result(result_id)

    async def advice_on(self, result_id: int) -> AdvisedResult:
        return AdvisedResult((), await self.results.get(result_id))

    async def quality_comparisons(self) -> tuple[QualityResult, ...]:
        return self.compared

    async def no_timeline(self, result_id: int) -> None:
        """Return None: the canned results have no timeline."""

    async def delete_result(self, result_id: int) -> None:
        self._called("delete_result", result_id)
        self.push(results=tuple(r for r in self.state.results if r.id != result_id))

    def mark(self, result_id: int, which: str) -> None:
        self._called("mark", result_id, which)
        self.push(**{f"mark_{which.lower()}": result_id})

    async def compare(self, a: int | None = None, b: int | None = None) -> Comparison:
        self._called("compare", a, b)
        if len(self.state.results) < 2:
            raise InputError("two results are needed to compare", next_step="b runs a benchmark")
        made = canned_comparison(self.simulated)
        self.push(comparison=made)
        return made

    async def follow(self, result_id: int) -> None:
        """Do nothing: the canned comparison is the same for all results."""

    async def restart_bench_compare(self, *, quality: bool = True) -> None:
        self._called("restart_bench_compare", *(() if quality else ("no answers",)))

    def restart_answers_cost(self) -> str:
        return self.answers_cost

    async def export_result(self, result_id: int, form: str) -> str:
        self._called("export_result", result_id, form)
        return f"result-{result_id}.{form}"

    async def accept_host_key(self) -> None:
        self._called("accept_host_key")

    async def read_activity(self) -> None:
        self._called("read_activity")

    def last_form(self, name: str) -> Mapping[str, str]:
        return {}

    def store_form(self, name: str, values: Mapping[str, str]) -> None:
        self._called("store_form", name)

    async def search_log(self, text: str) -> Sequence[tuple[int, str]]:
        lines = enumerate(self.log.lines(0, len(self.log)), 1)
        return [(n, line) for n, line in lines if text.lower() in line.lower()]

    async def try_again(self) -> None:
        self._called("try_again")

    def known_hosts(self) -> Sequence[KnownHost]:
        listed = [
            KnownHost(name)
            for name in ("local", "spark-01", "spark-02", "sim:four-pcie", "sim:gb10")
        ]
        return (*listed, *self.added_hosts)

    def add_host(self, name: str, ssh: str = "", container: str = "", label: str = "") -> None:
        self._called("add_host", name, ssh, container, label)
        self.added_hosts.append(
            KnownHost(name, "hosts.toml", label, "/".join(filter(None, (ssh, container))))
        )

    async def switch_host(self, name: str) -> None:
        self._called("switch_host", name)
        self.push(host=HostView(name, "ssh", link="connecting"))


async def walked(session: FakeSession, stage: str) -> FakeSession:
    """Return the session after the loop up to `stage`: "plan", "ready", "bench", "compare", …"""
    await session.plans.load_preset("qwen3-vl-2b-dp4")
    if stage == "plan":
        return session
    await session.servers.start()
    server = session.state.server
    assert server is not None
    session.push(servers=(replace(server, started_unix_s=None, ready_unix_s=None),))
    if stage == "ready":
        return session
    await session.bench.benchmark_selected_run(concurrency=8)
    session.plans.set_flag("max-num-seqs", "1024")
    if stage == "benching":
        session.push(
            bench=BenchState(
                running=True,
                spec=session.state.bench.spec,
                progress=BenchProgress(31, 0, 64, 8, 3968, 6120.0, 4.2),
                last_id=41,
            )
        )
        return session
    await session.bench.benchmark_selected_run(concurrency=8)
    ceiling = CeilingView(448.0, 363.0, "nominal bandwidth, 1,792 GB/s", 42)
    session.push(
        results=(
            session.row(39, "power 500 W", 5690.0),
            session.row(40, "baseline", 5790.0, ceiling=ceiling),
            *session.state.results,
        ),
        mark_a=41,
        mark_b=42,
    )
    await session.results.compare()
    session.push(
        activity=(
            Activity(
                NOW,
                session.state.host.name,
                "vllm serve Qwen/Qwen3-VL-2B-Instruct",
                "started, pid 4242",
            ),
        )
    )
    if stage == "altered":
        await session.gpu.apply_settings(GpuSettings(power_limit_w=500.0))
        session.push(gpu_findings=((0, "▲ lock 3000 has no effect"),), guard=guard())
    if stage == "trial":
        await session.gpu.apply_settings(GpuSettings(power_limit_w=500.0), trial_s=60.0)
    if stage == "experiment":
        session.push(experiment=canned_experiment(4))
    if stage == "experimented":
        done = canned_experiment()
        session.push(experiment=done, comparison=done.comparison)
    if stage == "sweeping":
        session.push(sweep=canned_sweep(4))
    if stage == "swept":
        session.push(sweep=canned_sweep())
    if stage == "tuning":
        session.push(sweep=canned_tune())
    if stage == "tuned":
        session.push(sweep=canned_tune(over=True), experiment=canned_experiment())
    return session
