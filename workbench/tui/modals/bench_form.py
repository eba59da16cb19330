"""The form of a benchmark: its profile, its size, and fields for details, which are hidden at
first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.model.bench import BenchSpec
from workbench.model.counts import count_of
from workbench.model.errors import InputError
from workbench.tui.cells import Row, paragraph
from workbench.tui.modals.form import Field, Form, Values, positive, whole_number

Profiles = Mapping[str, tuple[str, Mapping[str, Any]]]
STANDING = {  # source of the first values -> its description
    "as before": "as in the last benchmark",
    "preset's own": "as the preset suggests",
    "standard": "Workbench's standard",
}
NUMBERS = (
    ("concurrency", "streams at once", "1: a single reader"),
    ("requests", "requests", "without the warm-up"),
    ("max_tokens", "output tokens each", "forced where possible"),
    ("input_tokens", "prompt tokens each", "approximately"),
    ("warmup", "warm-up requests", "same shape, not counted"),
)
OPTIONAL = (  # empty: no limit
    ("rate", "requests a second", "empty: each stream sends without pause"),
    ("seconds", "seconds", "no request starts after this time"),
)
SWITCHES = (
    ("until_steady", "warm up until steady", "two windows agree within 3 %"),
    ("shared_prefix", "prefix cache", "off: every prompt is new"),
)
FIELDS = frozenset(name for group in (NUMBERS, OPTIONAL, SWITCHES) for name, *_ in group)


def text_of(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None:
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)


def overrides(values: Values) -> dict[str, Any]:
    """Return the values of the form as BenchSpec fields, by field name. Raise InputError for an
    invalid value."""
    made: dict[str, Any] = {}
    if values.get("profile", "as before") not in STANDING:
        made["profile"] = values["profile"]
    for name, label, _ in NUMBERS:
        made[name] = whole_number(values, name, label, 0 if name == "warmup" else 1)
    for name, label, _ in OPTIONAL:
        made[name] = positive(values, name, label)
    for name, *_ in SWITCHES:
        made[name] = values[name] == "on"
    if made["rate"] is not None:
        made["arrival"] = values["arrival"]
    if values["prompts_file"]:
        made["prompts_file"] = values["prompts_file"]
    return made


class BenchForm(Form):
    """The form of a benchmark. A chosen profile fills the other fields, and the user may then
    change each of them."""

    def __init__(self, spec: BenchSpec, profiles: Profiles, about: str, standing: str) -> None:
        """`spec` has the first values of the fields, and `about` is the text above the fields.
        `standing` says in a few words where `spec` comes from: the last benchmark, the preset, or
        Workbench's standard."""
        self.profiles, self.first = (
            profiles,
            {name: text_of(getattr(spec, name)) for name in FIELDS},
        )
        super().__init__(
            "Benchmark",
            _fields(spec, profiles, standing),
            intro=lambda w: [*paragraph(about, w, "dim"), ()],
            check=_check,
            tail=self._summary,
            accept="run",
            label_cells=22,
            entry_cells=17,
        )

    def _summary(self, values: Values, width: int) -> list[Row]:
        """Return rows with the purpose of the chosen profile and the values of the hidden fields."""
        chosen = values.get("profile", "")
        title = STANDING[chosen] if chosen in STANDING else self.profiles.get(chosen, ("",))[0]
        return [*paragraph(title, width), *_folded_values(values, width)]

    def changed(self, name: str) -> None:
        if name == "profile":
            chosen = self.values["profile"]
            given = (
                {n: text_of(v) for n, v in self.profiles[chosen][1].items()}
                if chosen in self.profiles
                else {}
            )
            for field in FIELDS:
                self.put(field, given.get(field, self.first[field]))
        super().changed(name)


def _fields(spec: BenchSpec, profiles: Profiles, standing: str) -> tuple[Field, ...]:
    def detail(name: str) -> bool:
        return name not in ("concurrency", "requests")

    named = Field("profile", "profile", standing, "left and right change it", (standing, *profiles))
    return (
        *([named] if profiles else []),
        *(
            Field(n, label, text_of(getattr(spec, n)), hint, detail=detail(n))
            for n, label, hint in NUMBERS
        ),
        *(
            Field(n, label, text_of(getattr(spec, n)), hint, ("off", "on"), detail=True)
            for n, label, hint in SWITCHES
        ),
        *(
            Field(n, label, text_of(getattr(spec, n)), hint, detail=True)
            for n, label, hint in OPTIONAL
        ),
        Field(
            "arrival",
            "schedule",
            spec.arrival,
            "of requests a second",
            ("poisson", "constant"),
            detail=True,
        ),
        Field("prompts_file", "prompts file", "", "JSON lines of your own", detail=True),
    )


def _check(values: Values) -> None:
    made = overrides(values)
    streams, requests = made["concurrency"], made["requests"]
    if made["rate"] is None and streams > requests:
        raise InputError(
            f"{count_of(requests, 'request')} cannot keep {streams} streams busy: set {streams} "
            "requests or more, or "
            "fewer streams"
        )


def _folded_values(values: Values, width: int) -> list[Row]:
    try:
        made = overrides(values)
    except InputError:  # enter shows the error
        return []
    what = made.get("prompts_file") or f"{made['input_tokens']} prompt tokens"
    loop = (
        (f"{made['rate']:g} requests a second, {made['arrival']}")
        if made["rate"] is not None
        else "closed loop"
    )
    warm = "until steady" if made["until_steady"] else "requests"
    end = f", at most {made['seconds']:g} s" if made["seconds"] is not None else ""
    cache = ", prefix cache in play" if made["shared_prefix"] else ""
    text = (
        f"{what}, {made['max_tokens']} output tokens; {loop}{end}; warm-up {made['warmup']} "
        f"{warm}{cache}"
    )
    return paragraph(text, width, "dim", "  ")
