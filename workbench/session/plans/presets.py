"""The preset library, and what config.toml and hosts.toml say about presets and engines on this
host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.model.counts import count_of
from workbench.model.errors import PresetError, StoreError
from workbench.model.findings import Level
from workbench.session.hosts.settings import HostSettings
from workbench.session.state import PresetEntry
from workbench.store.presets import PresetLibrary

if TYPE_CHECKING:
    from workbench.model.gpu import GpuInfo
    from workbench.model.plan import LaunchPlan
    from workbench.model.preset import Preset, Variable
    from workbench.session.plans.preset_variables import ResolvedVariables
    from workbench.session.plans.recipes import Recipes
    from workbench.session.state_holder import StateHolder
    from workbench.store.config import ConfigStore


class Presets:
    """Lists presets in the session's state, loads them, and makes launch plans from them. Reads
    only files of this machine."""

    def __init__(self, core: StateHolder, config: ConfigStore) -> None:
        self._core, self._config, self._settings = core, config, HostSettings(core, config)

    @cached_property
    def library(self) -> PresetLibrary:
        return PresetLibrary()

    @cached_property
    def recipes(self) -> Recipes:
        """The part that reads recipes of other tools and saves them as presets."""
        from workbench.session.plans.recipes import Recipes

        return Recipes(self._core, self.library, self.reload_presets)

    def reload_presets(self) -> None:
        """Read the library again, and list its presets in the session's state."""
        telemetry = self._core.state.telemetry
        infos = telemetry.infos if telemetry else None
        rows = []
        for entry in self.library.list():
            lacks = _missing_gpus_text(entry.gpu_names, entry.gpu_count, infos)
            row = PresetEntry(
                id=entry.id,
                title=entry.title or entry.id,
                engine=entry.engine,
                hardware=entry.hardware,
                status=entry.status,
                own=entry.origin == "own",
                path=entry.path,
                summary=entry.summary,
                problem=entry.error.text if entry.error else None,
                baseline=entry.baseline,
                caveats=entry.caveats,
                fits=None if lacks is None else not lacks,
                lacks=lacks or "",
            )
            rows.append(row)
        self._core.update(presets=tuple(rows), presets_read=True)

    def get(self, id_or_path: str) -> Preset:
        """Return the preset with this id, or the one in the file with this path. From then on, the
        preset of such a file is known by its id too, unless the library has that id. Raises
        PresetError if there is none or it is invalid."""
        if not _is_file_path(id_or_path):
            return self.library.get(id_or_path)
        return self.library.load_preset_file(Path(id_or_path))

    def path_of_preset(self, preset_id: str | None) -> str | None:
        """Return the absolute path of the file that gave the preset with this id. None if it is a
        preset of the library, if no preset has this id, and for None."""
        path = self.library.registered_preset_path(preset_id)
        return str(path.absolute()) if path is not None else None

    def register_preset_file(self, plan: LaunchPlan) -> None:
        """Register the file of the preset of a plan that another Workbench has made. From then on,
        its id stands for this file, unless the library or a file read here has that id."""
        if plan.preset_id is not None and plan.preset_file is not None:
            self.library.register_preset_file(plan.preset_id, Path(plan.preset_file))

    def preset_of_model(self, model: str, engine: str) -> str | None:
        """Return the id of the first preset of `engine` whose model is the hub id `model` and that
        states the sizes of this model; None if there is none."""
        wanted = model.lower()
        for entry in self.library.list():
            if entry.error is not None or entry.engine != engine:
                continue
            preset = self.get(entry.id)
            variable = preset.variables.get(preset.model.id.strip("${}"))
            named = preset.model.id if variable is None else variable.default or ""
            if named.lower() == wanted and preset.model.weight_gb:
                return entry.id
        return None

    def required_gpu_names(self, preset_id: str | None) -> tuple[str, ...]:
        """Return the NVML names of the GPUs that a preset is for. () if it is for any GPU, if there
        is no such preset, and for None."""
        try:
            return tuple(self.get(preset_id).hardware.gpu_names) if preset_id else ()
        except PresetError:  # deleted or renamed since
            return ()

    def missing_hardware_text(self, preset_id: str | None) -> str:
        """Return what the host lacks for a preset, such as "needs 2 x RTX 5060 Ti". "" if the host
        lacks nothing, if the preset or the host's GPUs are not known, and for None."""
        telemetry = self._core.state.telemetry
        if not preset_id or telemetry is None:
            return ""
        try:
            hardware = self.get(preset_id).hardware
        except PresetError:  # deleted or renamed since
            return ""
        return _missing_gpus_text(hardware.gpu_names, hardware.count, telemetry.infos) or ""

    def missing_variables(self, preset_id: str) -> Mapping[str, Variable]:
        """Return {name: variable} of the variables of a preset that have no value: no default, no
        value from a READY run, and none that the host provides. Raises HostUnreachable if the
        cluster would provide one but a node cannot be reached."""
        preset = self.get(preset_id)
        known = self._resolve_variables(preset)
        self._check_nodes_for_variables(preset, known)
        return {name: variable for name, variable in preset.variables.items() if name not in known}

    def _check_nodes_for_variables(self, preset: Preset, known: ResolvedVariables) -> None:
        """Raise HostUnreachable if a variable has no value because a node of the cluster cannot be
        reached."""
        from workbench.hosts.cluster import VARIABLES, ClusterHost

        host = self._core.host
        lacks = preset.variables.keys() - known.keys()
        if isinstance(host, ClusterHost) and lacks.intersection(VARIABLES):
            host.check_nodes_reachable()

    def _resolve_variables(
        self, preset: Preset, given: Mapping[str, str] | None = None
    ) -> ResolvedVariables:
        from workbench.session.plans.preset_variables import resolve_variables

        return resolve_variables(
            preset,
            self._core.host,
            self._config.remembered_variables(self._core.host.name, preset.id),
            given,
        )

    def make_plan(self, preset_id: str, variables: Mapping[str, str] | None = None) -> LaunchPlan:
        """Return the launch plan of a preset. `variables` are the values that the user gave for the
        preset's variables. Raises HostUnreachable if the cluster would provide a value but a node
        cannot be reached."""
        from workbench import engines
        from workbench.engines.host_entries import add_host_settings

        preset = self.get(preset_id)
        known = self._resolve_variables(preset, variables)
        self._check_nodes_for_variables(preset, known)
        values = {name: value for name, (value, _) in known.items()}
        sources = {name: source for name, (_, source) in known.items()}
        plan = engines.plan_from_preset(preset, values, sources)
        path = Path(preset_id) if _is_file_path(preset_id) else self.library.path(preset_id)
        plan = replace(
            plan,
            stranger=not self.library.is_shipped(path),
            preset_file=self.path_of_preset(preset.id),
        )
        return add_host_settings(
            plan,
            self._settings.host_entry,
            self._settings.engine_program_and_source_file(plan.engine),
        )

    def remember_variables(self, run_id: str, plan: LaunchPlan) -> None:
        """Write the variables that the user gave for a run to config.toml, for later plans of the
        same preset on this host. Notify the user if the file cannot be written."""
        from workbench.session.plans.preset_variables import variables_to_remember

        values = variables_to_remember(plan)
        if not values or plan.preset_id is None:
            return
        try:
            self._config.remember_variables(self._core.host.name, plan.preset_id, values, run_id)
        except StoreError as error:
            text = f"the values of the preset's variables were not stored: {error.message}"
            self._core.notify(Level.WARN, text, error.next_step)


def _is_file_path(preset_id: str) -> bool:
    return preset_id.endswith(".toml") or len(Path(preset_id).parts) > 1


def _missing_gpus_text(
    names: Sequence[str], count: int, infos: Sequence[GpuInfo] | None
) -> str | None:
    """Return what the GPUs `infos` of a host lack for a preset that needs `count` GPUs of one of
    the types `names`, such as "needs 2 GPUs". Empty `names` stand for any type. "" if nothing is
    lacking. None if that is not known: `infos` is None, or the host has no GPU and one of any type
    is asked for, in whose place a CPU may be enough."""
    if infos is None:
        return None
    fitting = [info for info in infos if not names or info.name in names]
    if len(fitting) >= count:
        return ""
    if not infos and not names and count == 1:
        return None
    if names:
        kind = names[0].removeprefix("NVIDIA ").removeprefix("GeForce ")
        return f"needs {kind}" if count == 1 else f"needs {count} x {kind}"
    return f"needs {count_of(count, 'GPU')}"
