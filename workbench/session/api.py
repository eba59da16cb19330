"""What a front end may ask of the session. `Session` (session.py) is the real one; tests draw from a scripted one.

Every async command raises WorkbenchError for a person; none leaves the state half-changed. Long ones
(start, bench) return when they are under way or done as stated, and report through the state meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from workbench.session.state import SessionState

if TYPE_CHECKING:  # none of it is needed for the first frame
    from workbench.hosts.base import Ask
    from workbench.model.bench import BenchResult, BenchSpec, Comparison
    from workbench.model.experiment import Arm, Experiment
    from workbench.model.findings import Finding
    from workbench.model.flags import FlagRow
    from workbench.model.plan import PlanChange
    from workbench.model.preset import Preset, Variable
    from workbench.model.settings import GpuSettings, GuardView, SettingCommand, SettingsReport
    from workbench.model.sweep import Sweep
    from workbench.server.external_servers import FoundServer

Listener = Callable[[SessionState, frozenset[str]], None]


class LogView(Protocol):
    """The followed run's log in bounded memory. Line 0 is the oldest that is kept."""

    def __len__(self) -> int: ...

    def lines(self, start: int, count: int) -> Sequence[str]: ...

    def level(self, line: str) -> str:
        """ "error", "warn", "info" or "" — for colour, never the only sign."""
        ...

    def find(self, text: str, start: int, backwards: bool = False) -> int | None: ...


class History(Protocol):
    """Telemetry rings for sparklines."""

    def series(self, gpu_index: int, metric: str, count: int) -> Sequence[float | None]:
        """The newest `count` values of a GpuSample field, oldest first; None where absent."""
        ...


class SessionApi(Protocol):
    ask: Ask | None  # asks the user for a login's passphrase, password or code; the front end sets it

    @property
    def state(self) -> SessionState: ...
    @property
    def log(self) -> LogView: ...
    @property
    def history(self) -> History: ...

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener(state, changed field names)` after each change, on the loop's thread. Returns unsubscribe."""
        ...

    async def open(self) -> None:
        """Connect, start telemetry, list presets, adopt servers, read journal and results. Returns at once after
        starting background work; what fails shows in the state."""
        ...

    async def close(self) -> None:
        """Stop telemetry and forwards. Servers and GPU settings stay as they are."""
        ...

    # presets and the plan: quick, no host access
    def preset(self, preset_id: str) -> Preset: ...
    def missing_variables(self, preset_id: str) -> Mapping[str, Variable]:
        """Variables of the preset without a remembered value or default: ask the user."""
        ...

    async def load_preset(self, preset_id: str, variables: Mapping[str, str] | None = None) -> None: ...
    def set_flag(self, name: str, text: str) -> None:
        """`text` as typed ("512", "on", "fp8", JSON). InputError says what was expected; nothing changes then."""
        ...

    def unset_flag(self, name: str) -> None: ...
    def executables(self) -> Sequence[str]:
        """Programs of the plan's engine that were found on the host, none of them started."""
        ...

    async def set_executable(self, text: str, *, keep: bool = False) -> None:
        """Name the program that starts the plan's engine ("": its own); `keep`: for every later plan on this host."""
        ...

    def set_env(self, name: str, value: str) -> None: ...
    def unset_env(self, name: str) -> None: ...
    def undo(self) -> None: ...
    def redo(self) -> None: ...
    def flag_rows(self, view: str = "changed", query: str = "") -> Sequence[FlagRow]:
        """view "changed" (set ones) or "all"; a query searches all, fuzzily, best first."""
        ...

    def changes_against_running(self) -> Sequence[PlanChange]: ...
    async def save_preset(self, preset_id: str, title: str) -> str:
        """Write the plan as one of the person's own presets; returns the path."""
        ...

    def untrusted(self) -> Sequence[Finding]:
        """What a stranger's preset makes run besides its engine's usual program; `start` raises NotTrusted for it."""
        ...

    def trust(self) -> None:
        """Agree to run that."""
        ...

    def script(self) -> str:
        """The plan as a POSIX shell script (secrets masked), for export and copy."""
        ...

    # servers
    async def start(self) -> str:
        """Start the plan; if the selected run is alive it is stopped first (restart). Returns the run id once started;
        readiness shows in the state."""
        ...

    async def stop(self, run_id: str | None = None) -> None: ...
    async def other_servers(self) -> Sequence[FoundServer]:
        """Servers of the host that no Workbench started, with their command lines; only read."""
        ...

    async def select_run(self, run_id: str) -> None: ...
    async def search_log(self, text: str) -> Sequence[tuple[int, str]]:
        """(line, its text) of the selected run's whole log file that hold `text`; the first 500."""
        ...

    # measuring
    async def bench(self, **overrides: Any) -> int | None:
        """Benchmark the selected run (fields of BenchSpec as overrides). None when it was queued for READY."""
        ...

    def bench_defaults(self) -> BenchSpec:
        """The shape that the selected run's preset suggests, or the last one that was asked for with `bench`."""
        ...

    def benched_before(self) -> bool:
        """Whether that is the last one that was asked for."""
        ...

    def bench_shape(self) -> Mapping[str, Any]:
        """The same as fields of BenchSpec, for a sweep or an experiment."""
        ...

    def bench_profiles(self) -> Mapping[str, tuple[str, Mapping[str, Any]]]:
        """Benchmarks by name: what each is for, and its fields of BenchSpec."""
        ...

    async def cancel_bench(self) -> None: ...
    async def result(self, result_id: int) -> BenchResult: ...
    async def delete_result(self, result_id: int) -> None: ...
    def mark(self, result_id: int, which: str) -> None:
        """which: "A" or "B"; marking the same again removes the mark."""
        ...

    async def compare(self, a: int | None = None, b: int | None = None) -> Comparison:
        """Default: the marks, else the last two results (older is A)."""
        ...

    async def restart_bench_compare(self) -> None:
        """`.`: restart with the plan, wait for READY, bench with the previous shape, compare with the previous run."""
        ...

    async def export_result(self, result_id: int, form: str) -> str:
        """form "json", "csv" or "md"; returns the path written."""
        ...

    # GPU settings
    def preset_gpu_settings(self, preset_id: str | None = None) -> Sequence[tuple[str, GpuSettings, str]]:
        """(GPU or "all", settings, reason) that the loaded preset carries. Nothing applies them by itself."""
        ...

    async def plan_gpu(self, wanted: GpuSettings, gpu: int | None = None) -> Sequence[SettingCommand]:
        """Commands for one GPU or all, checked against the driver's limits; nothing is run."""
        ...

    async def apply_gpu(
        self,
        wanted: GpuSettings,
        gpu: int | None = None,
        *,
        dry_run: bool = False,
        trial_s: float | None = None,
        password: str | None = None,
    ) -> SettingsReport:
        """Change, read back, and put a guard over it. `trial_s`: given back after that unless confirmed. `password`:
        for sudo's stdin only, where `state.host.sudo_password` says that one helps. `dry_run`: nothing is changed; what
        would be run, with what is there before and how that is known."""
        ...

    async def revert_gpu(
        self, gpu: int | None = None, *, password: str | None = None, foreign: str | None = None
    ) -> SettingsReport:
        """`foreign`: a value that someone else has set since: "keep" it, set "ours" again, or give the "original" back;
        without it such a setting is left alone, and its outcome says so."""
        ...

    async def cautions(self) -> Sequence[str]:
        """What to know before the settings are left on: some may be lost, some are not there any more."""
        ...

    async def confirm_gpu(self) -> GuardView:
        """End the trial: the settings stay, guarded by this Workbench's heartbeat."""
        ...

    async def keep_gpu(self) -> GuardView:
        """Leave the settings on deliberately: no heartbeat is waited for any more; journalled."""
        ...

    def alive(self) -> None:
        """The screen was drawn and its terminal has taken it: to be said at least every 2 s. The guard gives settings
        back when it is not."""
        ...

    async def gpu_processes(self) -> Sequence[tuple[int, int, str, bool]]:
        """(gpu index, pid, name, ours) of what runs on the GPUs: a change concerns all of them."""
        ...

    async def verify_gpu(
        self, seconds: float = 8.0, *, probe: bool = False, password: str | None = None
    ) -> Sequence[str]:
        """Drive the selected run for so long and say of each altered setting whether it holds; the findings stand on
        the GPUs' rows. `probe`: with another lock for a moment, as `probe_commands` named it."""
        ...

    async def probe_commands(self) -> Sequence[SettingCommand]:
        """Of what the last load proved nothing: the commands that a probe would run. Empty where it left nothing
        open."""
        ...

    async def gpu_sweep(self, setting: str, values: Sequence[str], gpu: int | None = None, **bench: Any) -> Sweep:
        """Measure the selected run at each value of "power_limit_w" or "gpu_clocks"; back to what was at the end or on
        any failure. Progress in `state.sweep`."""
        ...

    # sweeps and experiments
    async def concurrency_sweep(self, levels: Sequence[int], **bench: Any) -> Sweep: ...
    async def flag_sweep(self, flags: Mapping[str, Sequence[str]], **options: Any) -> Sweep: ...
    async def resume_sweep(self, sweep_id: int, *, password: str | None = None) -> Sweep:
        """Go on with one that was stopped or failed (`Sweep.resumable`), in its own record."""
        ...

    async def cancel_sweep(self) -> None: ...
    async def experiment(self, a: Arm, b: Arm, **options: Any) -> Experiment:
        """A and B on the loaded plan, in ABBA pairs (fields of ExperimentSpec as options). Returns when it has ended;
        progress in `state.experiment`. Stopped or failed, it keeps what it has and can be resumed."""
        ...

    async def resume_experiment(self, experiment_id: int, *, pairs: int | None = None) -> Experiment: ...
    async def stop_experiment(self) -> None: ...
    def experiment_estimate_s(self, a: Arm, b: Arm, **options: Any) -> float | None:
        """How long it would take, told before the start; None where no run of this plan is known."""
        ...

    async def experiments(self) -> Sequence[Experiment]:
        """Newest first, without their comparisons."""
        ...

    async def experiment_called(self, experiment_id: int) -> Experiment:
        """With the comparison of its results."""
        ...

    # history
    async def find_results(self, search: str) -> None:
        """`state.results` narrowed to what has all these words ("" for all)."""
        ...

    async def note_result(self, result_id: int, note: str) -> None: ...
    async def tag_result(self, result_id: int, tags: Sequence[str]) -> None: ...

    # where an earlier screen was left
    async def read_activity(self) -> None:
        """`state.activity` as it is on disk: also what other Workbenches of this user did to the host."""
        ...

    def last_form(self, name: str) -> Mapping[str, str]:
        """What stood in a form when it was last accepted on this host."""
        ...

    def keep_form(self, name: str, values: Mapping[str, str]) -> None:
        """Remember it, unless it holds a secret."""
        ...

    # hosts
    async def try_again(self) -> None:
        """Connect once more to a host that could not be reached."""
        ...

    async def accept_host_key(self) -> None:
        """After the person said yes to the fingerprint in `state.host.message`."""
        ...

    def known_hosts(self) -> Sequence[str]:
        """Names for the host picker: "local", ssh config aliases, simulated profiles as "sim:NAME"."""
        ...

    async def switch_host(self, name: str) -> None: ...
