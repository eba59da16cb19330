"""The scripted session's GPU settings, guard, sweeps, experiments and history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from support.fake_canned import (
    NOW,
    canned_experiment,
    canned_sweep,
    canned_tune,
    guard,
    tune_spec,
)

from workbench.model.experiment import Arm, Experiment
from workbench.model.setting_records import (
    Alteration,
    GuardView,
    InForce,
    SettingCommand,
    SettingOutcome,
    SettingsReport,
)
from workbench.model.settings import GpuSettings
from workbench.model.sweep import BACK, Sweep, SweepSpec
from workbench.model.tune import TuneCost
from workbench.session.series.sweep_parts import PlannedSweep

SUDOERS = "you ALL=(root) NOPASSWD: /usr/bin/nvidia-smi -i GPU-0000 -pl 500"


class FakeMeasuring:
    """The measuring parts of the scripted session. `processes`, `right` and `in_force` are the
    answers of the next calls."""

    processes: tuple[tuple[int, int, str, bool], ...] = (
        (0, 4242, "vllm", True),
        (0, 991, "python3 train.py", False),
    )
    right: str | None = None  # what every command lacks
    carried: tuple[tuple[str, GpuSettings, str], ...] = ()  # by the loaded preset
    in_force = InForce.YES

    def _wanted(self, wanted: GpuSettings) -> list[tuple[str, Any, tuple[str, ...]]]:
        options = {
            "persistence": "-pm",
            "power_limit_w": "-pl",
            "gpu_clocks": "-lgc",
            "memory_clocks": "-lmc",
        }
        return [
            (
                key,
                wanted[key],
                (
                    option,
                    f"{wanted[key]:g}" if isinstance(wanted[key], float) else str(wanted[key]),
                ),
            )
            for key, option in options.items()
            if key in wanted
        ]

    def preset_gpu_settings(
        self, preset_id: str | None = None
    ) -> Sequence[tuple[str, GpuSettings, str]]:
        return self.carried

    def bench_profiles(self) -> Mapping[str, tuple[str, Mapping[str, Any]]]:
        return {
            "quick": (
                "8 streams of 128 tokens",
                {"concurrency": 8, "requests": 64, "until_steady": False},
            ),
            "single-stream": (
                "one request after the other",
                {"concurrency": 1, "requests": 8, "until_steady": True},
            ),
            "batch": (
                "32 streams of mixed lengths",
                {"concurrency": 32, "requests": 256, "until_steady": True, "length_spread": 0.2},
            ),
        }

    async def plan_gpu(
        self, wanted: GpuSettings, gpu: int | None = None
    ) -> Sequence[SettingCommand]:
        self._called("plan_gpu", wanted, gpu)
        which = range(self.gpu_count) if gpu is None else [gpu]
        return [
            SettingCommand(
                i,
                f"GPU-{i:04d}",
                name,
                ("nvidia-smi", "-i", f"GPU-{i:04d}", *words),
                self.right,
                value,
            )
            for i in which
            for name, value, words in self._wanted(wanted)
        ]

    async def apply_gpu(
        self,
        wanted: GpuSettings,
        gpu: int | None = None,
        *,
        dry_run: bool = False,
        trial_s: float | None = None,
        password: str | None = None,
    ) -> SettingsReport:
        commands = await self.plan_gpu(wanted, gpu)
        if dry_run:
            known = {"gpu_clocks": ("unknown", "unknown"), "memory_clocks": ("default", "default")}
            return SettingsReport(
                tuple(
                    SettingOutcome(
                        c,
                        not c.right,
                        *(known.get(c.setting) or (600.0,))[:1],
                        c.value,
                        before_known=known.get(c.setting, ("", "read"))[1],
                    )
                    for c in commands
                ),
                dry_run=True,
            )
        self._called("apply_gpu", wanted, gpu, trial_s, password)
        self.push(
            alterations=tuple(
                Alteration(c.gpu_index, c.gpu_uuid, c.setting, 600.0, c.value, NOW)
                for c in commands
            ),
            guard=guard(trial_left_s=trial_s),
        )
        outcomes = tuple(
            SettingOutcome(c, True, 600.0, c.value, c.value, self.in_force) for c in commands
        )
        return SettingsReport(outcomes, journal="journal.json", guard=self.state.guard)

    async def warnings_without_guard(self) -> Sequence[str]:
        return ()

    async def revert_gpu(
        self, gpu: int | None = None, *, password: str | None = None, foreign: str | None = None
    ) -> SettingsReport:
        self._called("revert_gpu", gpu, password)
        outcomes = tuple(
            SettingOutcome(
                SettingCommand(
                    a.gpu_index, a.gpu_uuid, a.setting, ("nvidia-smi",), self.right, a.before
                ),
                True,
                a.now,
                a.before,
                a.before,
                self.in_force,
            )
            for a in self.state.alterations
        )
        self.push(alterations=(), guard=None, gpu_findings=())
        return SettingsReport(outcomes)

    async def confirm_gpu(self) -> GuardView:
        self._called("confirm_gpu")
        self.push(guard=guard())
        return guard()

    async def keep_gpu(self) -> GuardView:
        self._called("keep_gpu")
        self.push(guard=guard(heartbeat_s=None))
        return guard(heartbeat_s=None)

    def alive(self) -> None:
        self.alive_count = getattr(self, "alive_count", 0) + 1

    async def gpu_processes(self) -> Sequence[tuple[int, int, str, bool]]:
        self._called("gpu_processes")
        return self.processes

    async def probe_commands(self) -> Sequence[SettingCommand]:
        return ()

    async def verify_gpu(
        self, seconds: float = 8.0, *, probe: bool = False, password: str | None = None
    ) -> Sequence[str]:
        self._called("verify_gpu", seconds)
        self.push(gpu_findings=((0, "▲ lock 3000 has no effect"),))
        return (
            "GPU0 SM lock: no effect: requested 3000-3090 MHz, observed 2790 MHz for 98 % of "
            "the samples",
        )

    async def marked_commands(self, commands: Sequence[SettingCommand]) -> Sequence[SettingCommand]:
        return commands

    async def plan_gpu_sweep(
        self, setting: str, values: Sequence[str], gpu: int | None = None, *, run_id: str
    ) -> Mapping[str, Sequence[SettingCommand]]:
        watts = {**{f"{value} W": float(value) for value in values}, BACK: 600.0}
        return {
            label: await self.plan_gpu(GpuSettings({setting: value}), gpu)
            for label, value in watts.items()
        }

    async def plan_sweep_resume(self, sweep_id: int) -> Mapping[str, Sequence[SettingCommand]]:
        return await self.plan_gpu_sweep("power_limit_w", ["550"], run_id="")

    async def gpu_sweep(
        self,
        setting: str,
        values: Sequence[str],
        gpu: int | None = None,
        *,
        run_id: str,
        password: str | None,
        **bench: Any,
    ) -> Sweep:
        self._called("gpu_sweep", setting, list(values), gpu, bench)
        return self._swept()

    async def concurrency_sweep(self, levels: Sequence[int], **bench: Any) -> Sweep:
        self._called("concurrency_sweep", list(levels), bench)
        return self._swept()

    async def flag_sweep(self, flags: Mapping[str, Sequence[str]], **options: Any) -> Sweep:
        self._called("flag_sweep", {k: list(v) for k, v in flags.items()}, options)
        return self._swept()

    async def plan_tune(self, goal: str, limits_text: str, **options: Any) -> PlannedSweep:
        self._called("plan_tune", goal, limits_text, options)
        spec = SweepSpec((), pairs=5, tune=tune_spec())
        made = canned_tune()
        return PlannedSweep(made.sweep_kind, made.name, "", (), spec, lambda progress: None)

    def tune_cost(self, planned: PlannedSweep) -> TuneCost:
        return TuneCost(18, 5, self.tune_load({}), 1260.0, 0.62)

    def tune_load(self, shape: Mapping[str, Any]) -> str:
        return "128 requests, 16 requests at a time, of 1024 prompt and 128 output tokens"

    async def run_tune(self, planned: PlannedSweep) -> Sweep:
        self._called("run_tune", planned.name)
        made = canned_tune()
        self.push(sweep=made)
        return made

    def _swept(self) -> Sweep:
        made = canned_sweep(4)
        self.push(sweep=made)
        return made

    async def resume_sweep(self, sweep_id: int, *, password: str | None = None) -> Sweep:
        self._called("resume_sweep", sweep_id)
        return self._swept()

    async def cancel_sweep(self) -> None:
        self._called("cancel_sweep")
        self.push(sweep=canned_sweep(4, state="stopped"))

    async def experiment(self, a: Arm, b: Arm, **options: Any) -> Experiment:
        self._called("experiment", a, b, options)
        made = canned_experiment(2)
        self.push(experiment=made)
        return made

    async def resume_experiment(
        self, experiment_id: int, *, pairs: int | None = None
    ) -> Experiment:
        self._called("resume_experiment", experiment_id, pairs)
        made = canned_experiment(4)
        self.push(experiment=made)
        return made

    async def stop_experiment(self) -> None:
        self._called("stop_experiment")
        self.push(experiment=canned_experiment(4, state="stopped"))

    def bench_shape(self) -> Mapping[str, Any]:
        return {
            "concurrency": 8,
            "requests": 64,
            "max_tokens": 128,
            "input_tokens": 128,
            "warmup": 8,
        }

    def experiment_quality_cost(self, a: Arm, b: Arm, **options: Any) -> str:
        return ""

    def experiment_value_warnings(self, a: Arm, b: Arm) -> tuple[str, ...]:
        return ()

    def experiment_estimate_s(self, a: Arm, b: Arm, **options: Any) -> float | None:
        return 62.0 * 2 * int(options.get("pairs", 3))

    async def experiment_setting_changes(
        self, a: Arm, b: Arm, twins: Sequence[str] = ()
    ) -> Sequence[SettingOutcome]:
        reports = [await self.apply_gpu(arm.gpu, dry_run=True) for arm in (a, b) if arm.gpu]
        return [outcome for report in reports for outcome in report.outcomes]

    async def list_experiments(self) -> Sequence[Experiment]:
        self._called("experiments")
        return (canned_experiment(), canned_experiment(4, state="stopped", number=6))

    async def experiment_called(self, experiment_id: int) -> Experiment:
        return next(e for e in await self.list_experiments() if e.id == experiment_id)

    async def find_results(self, search: str) -> None:
        self._called("find_results", search)
        if not hasattr(self, "all_results"):
            self.all_results = self.state.results
        words = search.lower().split()
        found = tuple(r for r in self.all_results if all(w in r.label.lower() for w in words))
        self.push(results=found, results_search=search)

    async def note_result(self, result_id: int, note: str) -> None:
        self._called("note_result", result_id, note)
        self.push(
            results=tuple(
                replace(r, note=note) if r.id == result_id else r for r in self.state.results
            )
        )

    async def tag_result(self, result_id: int, tags: Sequence[str]) -> None:
        self._called("tag_result", result_id, list(tags))
