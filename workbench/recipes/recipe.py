"""A recipe of another tool, as far as Workbench understands it: a plan, further properties such as
title and GPUs, and findings about the parts that a plan cannot contain.

`Notes` collects the findings while a recipe is read. `drop_values_unfit_for_preset` removes secrets
and values that only a shell could compute, so that neither is written into a preset.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from workbench.model.errors import InputError
from workbench.model.findings import Finding, Level
from workbench.model.flags import FlagSetting
from workbench.model.gpu import GpuInfo
from workbench.model.lazy_dataclass import dataclass
from workbench.model.plan import LaunchPlan
from workbench.model.preset import IMAGE
from workbench.model.secrets import mask_secrets_of_plan, mask_text

COMPUTED = "\ue000"  # stands in a word for a part that only a shell could compute
# A word that a template leaves for somebody to replace: VLLM_MODEL_PLACEHOLDER, <model>, {{ model
# }}.
_PLACEHOLDER = re.compile(
    r"(?P<name>[A-Z][A-Z0-9_]*?)_?PLACEHOLDER|<(?P<named>[A-Za-z][\w -]*)>|\{\{ *(?P<inner>\w+) "
    r"*\}\}"
)
_MOST_SHOWN = 200  # characters of a foreign text in a finding


@dataclass(frozen=True, slots=True)
class Recipe:
    """A recipe of another tool as Workbench understood it. `plan` is None if the recipe starts no
    server. `form` is the recipe's format, and `variables` are the values that the user must supply,
    as {name: description}."""

    plan: LaunchPlan | None
    form: str  # "sparkrun recipe"
    name: str = ""
    title: str = ""
    about: str = ""
    gpus: int | None = None
    gpu_names: tuple[str, ...] = ()
    memory_gib: float | None = None
    variables: Mapping[str, str] = field(default_factory=dict)  # name -> description
    caveats: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    # the number of GPUs in the plan follows from the GPUs of the host
    depends_on_gpus: bool = False


@dataclass(frozen=True, slots=True)
class Given:
    """What is known besides the text of a recipe. `entry` is the name of the service, variant or
    model to read from a text that has several; None leaves the choice to the format. `directory` is
    the directory of the recipe's file, and `gpus` are the GPUs of the host on which the server will
    run; None means unknown."""

    entry: str | None = None
    directory: Path | None = None
    gpus: tuple[GpuInfo, ...] | None = None

    def require_entry_among(self, form: str, kind: str, entries: Collection[str] = ()) -> None:
        """Raise InputError if `entry` is asked for and is not in `entries`, the names that the
        recipe has. `form` is the format of the recipe, and `kind` says what its entries are, such
        as "variant"."""
        if self.entry is None or self.entry in entries:
            return
        text = f"the {form} has no {kind} {self.entry!r}"
        choose = f"choose one of these: {', '.join(entries)}"
        raise InputError(text, next_step=choose if entries else "leave out --entry: it has none")


@dataclass(slots=True)
class Notes:
    """Collects the findings about a recipe while it is read, and the variables of the preset into
    which it is converted, as {name: description}."""

    findings: list[Finding] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)

    def add(
        self, level: Level, code: str, text: str, flag: str | None = None, fix: str | None = None
    ) -> None:
        finding = Finding(level, f"recipe.{code}", mask_text(text), flag=flag, fix=fix)
        if finding not in self.findings:
            self.findings.append(finding)

    def add_not_understood_warning(self, part: str, value: Any = None) -> None:
        shown = f": {shorten_value(value)}" if value is not None else ""
        self.add(Level.WARN, "not-understood", f"{part} is not understood and left out{shown}")

    def add_not_run_warning(self, part: str, code: Any) -> None:
        """Add a warning that a part of the recipe, which is a program or a script, is not run.
        `part` names the part, and `code` is its text."""
        fix = "read this part of the recipe, and run it yourself on the host if the server needs it"
        self.add(Level.WARN, "refused", f"{part} is not run: {shorten_value(code)}", fix=fix)

    def add_left_out_note(self, part: str, reason: str) -> None:
        self.add(Level.INFO, "left-out", f"{part} is left out: {reason}")

    def add_other_entries_notes(
        self, kind: str, entries: Iterable[str], chosen: str | None
    ) -> None:
        """Add a note about each entry besides `chosen`, with the option that reads it. `kind` says
        what the entries are, such as "variant"."""
        for name in entries:
            if name != chosen:
                self.add_left_out_note(f"the {kind} {name}", f"--entry {name} reads it")

    def add_variable_and_get_reference(self, name: str, where: str, about: str = "") -> str:
        """Add a variable to the preset for the recipe's variable `name`, whose value is unknown,
        and return the reference to it, "${own_name}". `where` names the format of the recipe.
        `about` describes the variable; "" for a description made of `name` and `where`."""
        own = re.sub(r"[^a-z0-9_]+", "_", name.lower()).lstrip("_0123456789")[:32] or "value"
        self.variables.setdefault(own, about or f"value of {name} in the {where}")
        return f"${{{own}}}"


def shorten_value(value: Any) -> str:
    """Return a value from a recipe as one line of at most _MOST_SHOWN characters, for a finding.
    Secrets are masked before the text is cut, because a cut secret would not be recognized."""
    text = mask_text(" ".join(str(value).split()).replace(COMPUTED, "$(…)"))
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def drop_values_unfit_for_preset(recipe: Recipe, notes: Notes) -> Recipe:
    """Return the recipe with the findings of `notes` and without values that a preset must not
    contain: secrets, placeholders, and values that only a shell could compute. The findings name
    each value that is left out of the plan; in other texts, secrets are masked. A model that is
    left out becomes a variable of the preset."""
    plan = recipe.plan
    if plan is not None:
        masked = mask_secrets_of_plan(plan)
        flags = _settings_fit_for_preset(plan.flags, masked.flags, notes, "--")
        env = _settings_fit_for_preset(plan.env, masked.env, notes, "")
        executable = plan.executable
        if any(map(_has_secret_or_computed_part, executable)):
            notes.add(
                Level.WARN,
                "refused",
                "the program is computed by a shell; the engine's usual one is used",
            )
            executable = ()
        workdir = None if COMPUTED in (plan.workdir or "") else plan.workdir
        image = plan.image
        if image is not None and not _is_image_fit_for_preset(image):
            notes.add_not_understood_warning("the image", image)
            image = None
        model = plan.model
        if (name := _placeholder_name(model)) is not None:
            model = notes.add_variable_and_get_reference(name, recipe.form)
            notes.add(
                Level.WARN,
                "placeholder",
                f"the model is a placeholder ({plan.model}); the preset asks for it",
            )
        if _has_secret_or_computed_part(model):
            notes.add(
                Level.ERROR, "no-model", "the model's name is a secret or computed by a shell"
            )
            model = ""
        if not model:
            model = notes.add_variable_and_get_reference("model", recipe.form)
            notes.add(Level.WARN, "no-model", "no model is named; the preset asks for it")
        plan = replace(
            plan,
            flags=flags,
            env=env,
            executable=executable,
            workdir=workdir,
            model=model,
            image=image,
        )
        notes.variables = {
            name: text
            for name, text in notes.variables.items()
            if plan.contains_fillable_text(f"${{{name}}}")
        }
    return replace(
        recipe,
        plan=plan,
        name=mask_text(recipe.name),
        title=mask_text(recipe.title),
        about=mask_text(recipe.about),
        gpu_names=tuple(map(mask_text, recipe.gpu_names)),
        caveats=tuple(map(mask_text, recipe.caveats)),
        variables=dict(notes.variables),
        findings=tuple(
            replace(finding, text=mask_text(finding.text)) for finding in notes.findings
        ),
    )


def _is_image_fit_for_preset(image: str) -> bool:
    return not _has_secret_or_computed_part(image) and bool(re.fullmatch(IMAGE, image))


def _has_secret_or_computed_part(text: str) -> bool:
    """Return whether a text contains a secret or a part that only a shell could compute."""
    return COMPUTED in text or mask_text(text) != text


def _settings_fit_for_preset(
    settings: tuple[FlagSetting, ...],
    masked_settings: tuple[FlagSetting, ...],
    notes: Notes,
    name_prefix: str,
) -> tuple[FlagSetting, ...]:
    """Return the settings whose value a preset may contain, and add a note about each other one.
    `masked_settings` are the same settings with secrets masked."""
    kept = []
    for setting, shown in zip(settings, masked_settings, strict=True):
        name, option = f"{name_prefix}{setting.name}", "--set " if name_prefix else "--env "
        if COMPUTED in str(setting.value):
            notes.add(
                Level.WARN,
                "computed",
                f"{name} is left out: only a shell could compute its value",
                setting.name,
            )
        elif _placeholder_name(setting.value) is not None:
            text = f"{name} is left out: {setting.value} is a placeholder"
            notes.add(
                Level.WARN,
                "placeholder",
                text,
                setting.name,
                f"set it at the start: {option}{setting.name}=…",
            )
        elif shown.value != setting.value:
            fix = f"set it when you start the server: {option}{setting.name}=…"
            notes.add(
                Level.WARN,
                "secret",
                f"a secret is left out, because no preset stores one: {name}",
                setting.name,
                fix,
            )
        else:
            kept.append(setting)
    return tuple(kept)


def _placeholder_name(value: Any) -> str | None:
    """Return the name in a placeholder such as "<model>", "{{ model }}" or "MODEL_PLACEHOLDER",
    "value" if it has no name; None if `value` is not a placeholder."""
    if not isinstance(value, str):
        return None
    found = _PLACEHOLDER.fullmatch(value)
    return None if found is None else next(filter(None, found.groups()), "value")
