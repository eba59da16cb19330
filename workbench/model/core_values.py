"""Settings of the CPU cores as text: one value for all cores ("powersave"), or each value with its
cores ("performance=0-3 powersave=4-7").

A value of the C-states is "on" if the kernel may use every idle state of a core, "off" if none, or
names the idle states that are off ("off:2-3"). Sent to hosts with the agent and the guard: standard
library only, Python 3.8.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

ON, OFF = "on", "off"


def format_core_values(by_core: Mapping[int, str]) -> str | None:
    """Return the values of the cores as one text: "powersave" if all cores have it,
    "performance=0-3 powersave=4-7" if they differ. None without cores."""
    cores: dict[str, list[int]] = {}
    for cpu in sorted(by_core):
        cores.setdefault(by_core[cpu], []).append(cpu)
    if len(cores) < 2:
        return next(iter(cores), None)
    return " ".join(f"{value}={format_number_ranges(cores[value])}" for value in sorted(cores))


def parse_core_values(text: str) -> dict[str, tuple[int, ...]]:
    """Parse a text such as "performance=0-3 powersave=4-7" into {value: cores}. A value without
    cores has (), which means all cores. Raises ValueError if `text` is not such a text."""
    found: dict[str, tuple[int, ...]] = {}
    for word in str(text).split():
        value, _, cores = word.partition("=")
        found[value] = ()
        if cores:
            found[value] = tuple(parse_number_ranges(cores))
    if len(found) == 1 or (found and all(found.values())):
        return found
    raise ValueError(
        f"{text!r} is not a value for CPU cores, such as performance=0-3 powersave=4-7"
    )


def core_values_match(found: str, value: str) -> bool:
    """Return whether the cores have the values that the text `value` gives them; `found` is what
    they have. Cores that `found` does not mention are not compared. Raises ValueError if one of the
    texts is no such text."""
    now, wanted = parse_core_values(found), parse_core_values(value)
    if len(now) == 1:
        return list(now) == list(wanted)  # all cores have it
    if not all(wanted.values()):
        return False
    by_core: dict[int, str] = {}
    for name, cores in now.items():
        by_core.update(dict.fromkeys(cores, name))
    return all(by_core.get(cpu, name) == name for name, cores in wanted.items() for cpu in cores)


def format_core_c_states(disable_file_texts: Sequence[str]) -> str | None:
    """Return the C-states of one core: ON, OFF, or the idle states that are off, "off:2-3". None if
    they are unknown. `disable_file_texts` has the text of the file `disable` of each idle state, in
    their order: "1" for a state that is off, "0" for one that is on."""
    texts = [text.strip() for text in disable_file_texts]
    if not texts or not {*texts} <= {"0", "1"}:
        return None
    off = [number for number, text in enumerate(texts) if text == "1"]
    if not off:
        return ON
    if len(off) == len(texts):
        return OFF
    return f"{OFF}:{format_number_ranges(off)}"


def is_idle_state_off(core_c_states: str, state: int) -> bool:
    """Return whether the idle state number `state` is off. `core_c_states` is the value of one
    core: "on", "off" or "off:2-3"."""
    _, colon, some = core_c_states.partition(":")
    if not colon:
        return core_c_states == OFF
    return state in parse_number_ranges(some)


def format_number_ranges(found: Iterable[int]) -> str:
    """Return numbers as text with ranges: 0, 1, 2, 5 become "0-2,5"."""
    runs: list[list[int]] = []
    for number in sorted(found):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def parse_number_ranges(text: str) -> list[int]:
    """Return the numbers of a text with ranges: "0-2,5" becomes [0, 1, 2, 5]. Raises ValueError for
    other texts."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found.extend(range(int(first), int(last or first) + 1))
    return found
