"""The state of a session as one frozen value. Front ends draw the state and never change it."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from workbench.model.lazy_dataclass import dataclass

if TYPE_CHECKING:  # generating the model's dataclasses takes a tenth of the time to the first frame
    from workbench.model.alerts import Alert
    from workbench.model.bench import BenchProgress, BenchSpec, Comparison
    from workbench.model.engine_live import EngineView
    from workbench.model.experiment import Experiment
    from workbench.model.findings import Finding, Level
    from workbench.model.flags import FlagRow
    from workbench.model.gpu import GpuInfo, GpuSample, Telemetry
    from workbench.model.measurement_owner import MeasurementOwner
    from workbench.model.plan import Command, LaunchPlan, Node, PlanDifference
    from workbench.model.server_run import ServerStatus
    from workbench.model.setting_records import Alteration, Drift, GuardView
    from workbench.model.sweep import Sweep
    from workbench.session.bench.row import BenchRow
    from workbench.session.changes_while_away import ChangesSinceLastScreen


PREPARING_PHASE = "preparing"  # phase of a benchmark before its first request


# what `SessionState.busy` has while GPU settings change
APPLYING_SETTINGS = "applying GPU settings"
REVERTING_SETTINGS = "reverting GPU settings"
APPLYING_PRESET = "applying the preset"
SETTING_CHANGES = (APPLYING_SETTINGS, REVERTING_SETTINGS, APPLYING_PRESET)
VERIFYING_SETTINGS = "verifying GPU settings"
# while one of them runs, the journal may have entries of settings that are not in force yet
JOURNAL_CHANGES = (APPLYING_SETTINGS, REVERTING_SETTINGS, VERIFYING_SETTINGS)


@dataclass(frozen=True, slots=True)
class ReplayView:
    """A recording that is played in place of a host. `unix_s` is the recorded time that is shown
    now, and `speed` 2.0 is twice as fast as recorded."""

    unix_s: float
    speed: float = 1.0
    paused: bool = False
    ended: bool = False


@dataclass(frozen=True, slots=True)
class ModelWorkView:
    """Work on model files that runs in the background. `done` and `total` are bytes; a `total` of 0
    is not known."""

    what: str
    text: str = ""  # what is under way
    done: int = 0
    total: int = 0
    bytes_s: float = 0.0


@dataclass(frozen=True, slots=True)
class HostView:
    """The host of the session and the link to it."""

    name: str
    kind: str = "local"
    link: str = "connecting"
    message: str | None = None
    lost_since_unix_s: float | None = None
    retries: int = 0
    latency_ms: float | None = None
    simulated: str | None = None  # profile name
    user: str | None = None
    can_change_gpus: str | None = None  # None: yes; else why not
    sudo_password: bool = False  # whether a password for sudo is enough
    telemetry_problem: str | None = None  # why the GPUs are not read
    journal_disk_full: bool = False  # so that no revert of GPU settings can be written down
    others_problem: str | None = None  # why the changes of other users' Workbenches are not known
    # what was kept of a journal of GPU settings that was missing or damaged at the last reading
    journal_recovery: str | None = None
    measured_by: MeasurementOwner | None = None  # another Workbench that measures on this host now
    model_work: ModelWorkView | None = None  # ends when the session leaves the host
    replay: ReplayView | None = None  # a recording in place of the host
    # fingerprint of an unknown key; a changed key is rejected instead
    unknown_key: str | None = None


@dataclass(frozen=True, slots=True)
class PresetEntry:
    """One row of the list of presets. A preset with a `problem`, the reason why it is invalid, is
    listed but cannot be loaded."""

    id: str
    title: str
    engine: str
    hardware: str
    status: str
    own: bool = False
    path: str = ""
    summary: str = ""
    problem: str | None = None
    baseline: str | None = None
    fits: bool | None = None  # whether the host's GPUs are sufficient; None: not known yet
    lacks: str = ""  # what a host lacks on which the preset does not fit, such as "needs 2 GPUs"
    caveats: int = 0


@dataclass(frozen=True, slots=True)
class BenchState:
    """The benchmark that is running or queued."""

    running: bool = False
    queued: bool = False  # waits until the server is READY
    spec: BenchSpec | None = None
    progress: BenchProgress | None = None
    error: str | None = None
    # the result of the last run, valid or not; None if that run stored none
    stored_id: int | None = None
    last_id: int | None = None  # the newest valid result of this host, which "." repeats

    @property
    def is_running_or_queued(self) -> bool:
        return self.running or self.queued

    @property
    def time_limit_s(self) -> float | None:
        """The seconds after which the benchmark ends; None if its requests limit it."""
        if self.spec is None:
            return None
        return self.spec.seconds


@dataclass(frozen=True, slots=True)
class QualityView:
    """The comparison of answers that is running or ran last. `said` has what was done, in order,
    `step` what is being done now, such as "B: texts scored", and `done` of `total` how far it
    is."""

    a: str
    b: str
    running: bool = True
    stopping: bool = False
    said: tuple[str, ...] = ()
    step: str = ""
    done: int = 0
    total: int = 0
    ended: str = ""  # why there is no result; "" while it runs, or if it has one
    found: str = ""  # what it found, in one clause; "" without a result


@dataclass(frozen=True, slots=True)
class PlanView:
    """The plan under edit and everything derived from it. Its secrets are masked, so it cannot be
    started."""

    plan: LaunchPlan
    # set flags, then environment; the whole catalog: plans.flag_rows("all")
    rows: tuple[FlagRow, ...]
    findings: tuple[Finding, ...]
    # of the engine; None if the plan has no command (`findings` has the reason)
    command: Command | None
    catalog_version: str
    total_flags: int
    # the flags are those that the installed engine lists, not a shipped list
    catalog_asked: bool = False
    installed: str | None = None  # "vllm 0.33.0", or None while not known
    installed_problem: str | None = None  # "vllm not found on …"
    # programs found on the host that can start the engine; none of them was run
    executables: tuple[str, ...] = ()
    memory: str | None = None  # "memory est. 21.4/24.0 GiB per GPU"
    # what differs from the preset, with the preset's value and the plan's
    changes: tuple[PlanDifference, ...] = ()
    can_undo: bool = False
    can_redo: bool = False
    title: str = ""
    help: str = ""
    nodes: tuple[tuple[Node, Command], ...] = ()  # of a plan for several nodes
    run_command: Command | None = None  # of the launcher that runs the server; None for a process

    @property
    def edit_count(self) -> int:
        """The number of flags, variables and other parts of the plan that differ from the
        preset."""
        return len(self.changes)

    @property
    def memory_findings(self) -> list[Finding]:
        """The findings whose text begins with the text of the memory estimate; [] without an
        estimate."""
        if not self.memory:
            return []
        return [finding for finding in self.findings if finding.text.startswith(self.memory)]

    @property
    def start_command(self) -> Command | None:
        """The command that the host runs when the plan is started: the launcher's if there is one,
        else the engine's. None if the plan has errors."""
        return self.run_command or self.command

    @property
    def flag_source_text(self) -> str:
        """A text on the flags against which the plan is checked, such as "the shipped flags of vllm
        0.33.0"."""
        whose = "its own" if self.catalog_asked else "the shipped"
        return f"{whose} flags of {self.plan.engine} {self.catalog_version}"

    def shell_command(self) -> str:
        """Return the plan's command for a shell: one line, or one line per node below a comment
        with the node's name. "" if the plan has no command."""
        if self.nodes:
            return "\n".join(
                f"# {node.name} ({node.node_title})\n{its.shell_line}" for node, its in self.nodes
            )
        return self.start_command.shell_line if self.start_command else ""


@dataclass(frozen=True, slots=True)
class Activity:
    """An entry of the activity log: an action on a host, written as the command with which a user
    could have run it."""

    unix_s: float
    host: str
    command: str
    outcome: str = ""


@dataclass(frozen=True, slots=True)
class Notice:
    """A message for the user. `number` grows with each message, so that a repeated text is a new
    notice."""

    number: int
    level: Level
    text: str
    next_step: str | None = None


@dataclass(frozen=True, slots=True)
class SessionState:
    """Everything that a front end draws."""

    host: HostView
    telemetry: Telemetry | None = None
    telemetry_monotonic_s: float | None = None  # this machine's time.monotonic() at its arrival
    telemetry_interval_s: float = 1.0  # between two readings
    alterations: tuple[Alteration, ...] = ()
    # changed by other users' Workbenches; extra["by"] names them
    others: tuple[Alteration, ...] = ()
    drift: tuple[Drift, ...] = ()  # `alterations` that someone else has changed since
    # (gpu index, "▲ lock 3000 has no effect") on the GPU's row
    gpu_findings: tuple[tuple[int, str], ...] = ()
    # settings of the loaded preset that are not in force, what its server lacks
    unapplied: tuple[str, ...] = ()
    guard: GuardView | None = None  # of this host; None: not read yet, or never started
    # when the guard reverts this session's settings if no further heartbeat arrives, by this
    # machine's clock; None if it waits for none
    guard_deadline_unix_s: float | None = None
    presets: tuple[PresetEntry, ...] = ()
    presets_read: bool = False  # whether the library was read
    plan: PlanView | None = None
    servers: tuple[ServerStatus, ...] = ()
    servers_read: bool = False  # whether the host was asked for its servers
    run_id: str | None = None  # the selected run, whose log is followed
    # the run that ran before the selected one, if that one's start failed
    goes_back_to: str | None = None
    engine: EngineView | None = None  # live metrics of the selected server; None: no server runs
    log_revision: int = 0  # grows when `Session.log` has new lines
    bench: BenchState = BenchState()
    results: tuple[BenchRow, ...] = ()
    results_read: bool = False  # whether the stored results were read
    results_search: str = ""  # words that all of `results` contain
    mark_a: int | None = None
    mark_b: int | None = None
    b_chosen: bool = False  # whether the user marked B; else B follows the cursor in the list
    comparison: Comparison | None = None
    experiment: Experiment | None = None  # the one that runs, or was shown last
    sweep: Sweep | None = None  # likewise
    quality: QualityView | None = None  # likewise
    activity: tuple[Activity, ...] = ()  # newest last, at most 500
    notice: Notice | None = None
    alerts: tuple[Alert, ...] = ()  # newest last, at most 50
    # what happened on the host while no screen of this user was open there; None: not known
    changes_while_away: ChangesSinceLastScreen | None = None
    busy: tuple[str, ...] = ()  # what is under way now: "starting", "applying GPU settings", …
    offers: tuple[str, ...] = field(
        default=()
    )  # questions at the start, such as settings that a dead Workbench left on

    @property
    def server(self) -> ServerStatus | None:
        """The status of the selected run, None if no run is selected."""
        return next((s for s in self.servers if s.run_id == self.run_id), None)

    @property
    def ready_server(self) -> ServerStatus | None:
        """The selected server if it is READY, else None."""
        server = self.server
        if server is None or not server.is_ready:
            return None
        return server

    @property
    def live_server(self) -> ServerStatus | None:
        """The selected server if it starts, serves or stops, else None."""
        server = self.server
        if server is None or not server.state.is_alive:
            return None
        return server

    @property
    def gpus(self) -> tuple[GpuSample, ...]:
        """The GPUs with their values in the newest reading, () without one."""
        return self.telemetry.gpus if self.telemetry is not None else ()

    @property
    def gpu_infos(self) -> tuple[GpuInfo, ...]:
        """The properties of the GPUs of the newest reading, () without one."""
        return self.telemetry.infos if self.telemetry is not None else ()

    @property
    def trial_left_s(self) -> float | None:
        """The seconds that were left of the trial when the guard was last read; None if no settings
        are on trial."""
        if self.guard is None:
            return None
        return self.guard.trial_left_s

    @property
    def server_with_process(self) -> ServerStatus | None:
        """The selected server while its process is alive, even if its start has failed; else
        None."""
        server = self.server
        if server is None or not server.alive:
            return None
        return server

    @property
    def tune(self) -> Sweep | None:
        """The sweep if it is a tune, else None."""
        if self.sweep is None or not self.sweep.is_tune:
            return None
        return self.sweep

    def find_result(self, result_id: int | None) -> BenchRow | None:
        """Return the listed result with this number; None if it is not listed."""
        return next((row for row in self.results if row.id == result_id), None)

    @property
    def running_series(self) -> list[Experiment | Sweep]:
        """The experiment, then the sweep, while they are running."""
        series = (self.experiment, self.sweep)
        return [one for one in series if one is not None and one.state == "running"]

    @property
    def running_quality(self) -> QualityView | None:
        """The comparison of answers while it is running, else None."""
        return self.quality if self.quality is not None and self.quality.running else None

    @property
    def simulated(self) -> bool:
        """Whether the host or its GPUs are simulated."""
        return self.host.simulated is not None or bool(self.telemetry and self.telemetry.simulated)
