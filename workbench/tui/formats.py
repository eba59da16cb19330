"""Values as texts of few cells. None becomes "n/a": an absent value is not zero."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from workbench.model.counts import gpus_text
from workbench.session.bench.row_changes import (
    change_text,
    noise_pct_hiding_throughput_change,
    throughput_change_pct,
)
from workbench.session.state import SETTING_CHANGES, VERIFYING_SETTINGS
from workbench.tui.glyphs import G

if TYPE_CHECKING:
    from workbench.model.setting_records import Alteration
    from workbench.session.bench.row import BenchRow
    from workbench.session.state import SessionState

NA = "n/a"
_GPU_OF_KEY = re.compile(r"^gpu(\d+)\.")
GIB = 1024**3


def duration_text(seconds: float) -> str:
    """Return a duration as "58s", "12m41s", "3h07m" or "2d04h"."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def enclose_nonempty_text(before: str, text: object, after: str = "") -> str:
    """Return `text` between `before` and `after`; "" if there is no text."""
    if not text:
        return ""
    return f"{before}{text}{after}"


def time_of_day_text(unix_s: float) -> str:
    """Return the local time of day, as in "14:03:07"."""
    import time

    return time.strftime("%H:%M:%S", time.localtime(unix_s))


def day_and_time_text(unix_s: float) -> str:
    """Return the local date and time, as in "2026-11-21 14:03"."""
    import time

    return time.strftime("%Y-%m-%d %H:%M", time.localtime(unix_s))


def time_of_day_or_date_text(unix_s: float) -> str:
    """Return the local time of day, as in "14:03:07". For another day than today, return the date
    and the time without seconds."""
    import time

    at = day_and_time_text(unix_s)
    return time_of_day_text(unix_s) if at[:10] == day_and_time_text(time.time())[:10] else at


def number_text(value: float | None, digits: int | None = None) -> str:
    """Return a number with thousands separators and `digits` decimals; "n/a" for None. Without
    `digits`, a number has two decimals below 10, one below 100, and none from 100 on."""
    if value is None:
        return NA
    if digits is None:
        size = abs(value)
        digits = sum(size < limit for limit in (100, 10, 0.1)) if size else 2
    return f"{value:,.{digits}f}"


def whole_number_text(value: float | None, unit: str = "") -> str:
    """Return a number without decimals, followed by `unit`; "n/a" for None."""
    return NA if value is None else f"{value:.0f}{unit}"


def remaining_time_text(remaining_s: float | None) -> str:
    """Return the estimated time left as text; "" for None, and "longer than expected" when the
    estimated time is over."""
    if remaining_s is None:
        return ""
    if remaining_s < 1.0:
        return "longer than expected"
    return f"about {countdown_text(remaining_s)} left"


def gauge_text(fraction: float, cells: int) -> str:
    """Return a bar of `cells` cells, such as ▓▓▓░░, for a fraction from 0 to 1. Any fraction above
    0 has at least one full cell."""
    full = max(int(fraction > 0), min(cells, round(fraction * cells)))
    return G.bar_full * full + G.bar_empty * (cells - full)


def bar_text(value: float | None, scale_max: float, cells: int) -> str:
    """Return a bar of `cells` cells for `value` on a scale from 0 to `scale_max`, with blanks
    behind its end. Return "" for a value or a scale of None or 0."""
    if not value or not scale_max:
        return ""
    return gauge_text(value / scale_max, cells).replace(G.bar_empty, " ")


def bench_progress_text(state: SessionState) -> str:
    """Return the progress of the running benchmark: "measuring 31/64" requests, or "measuring 8/20
    s" if a duration limits the benchmark. Without a running benchmark the text is empty."""
    bench = state.bench
    if not bench.running or bench.progress is None:
        return ""
    p, seconds = bench.progress, bench.time_limit_s
    if is_load_check_running(state):  # the end of such a load is not known here
        return duration_text(p.elapsed_s)
    if p.phase != "measuring":
        return p.phase
    if seconds:
        return f"{p.phase} {min(p.elapsed_s, seconds):.0f}/{seconds:g} s"
    return f"{p.phase} {p.done}/{p.total}"


def is_load_check_running(state: SessionState) -> bool:
    """Return whether the load that is running now is a check of GPU settings, and not a
    benchmark."""
    return VERIFYING_SETTINGS in state.busy


def running_setting_change_text(state: SessionState) -> str:
    """Return which change or revert of GPU settings is under way, such as "applying GPU settings".
    Return "" if there is none. The state lists its altered settings only after it has ended."""
    return next((what for what in state.busy if what in SETTING_CHANGES), "")


def countdown_text(seconds: float) -> str:
    """Return the time left, rounded up: "43 s", "4m08s"."""
    left = max(0, -int(-seconds // 1))
    return f"{left} s" if left < 60 else duration_text(left)


def gib_text(size_bytes: float | None, digits: int = 1) -> str:
    """Return a number of bytes as text in GiB, without the unit; "n/a" for None."""
    return NA if size_bytes is None else f"{size_bytes / GIB:.{digits}f}"


def throughput_change_and_role(row: BenchRow, base: BenchRow | None) -> tuple[str, str]:
    """Return the change of a result's tokens per second from those of `base` as text with its role:
    "+230 %", or "+1.9 % ±3" if two such runs may differ by 3 % by chance. "" if the two may not be
    compared."""
    pct, noise = throughput_change_pct(row, base), noise_pct_hiding_throughput_change(row, base)
    if pct is None:
        return "", "dim"
    if noise is not None:
        return f"{change_text(pct)} {G.plus_minus}{math.ceil(noise)}", "text"
    return change_text(pct), "warn" if pct < 0 else "good"


def flag_default_text(value: object) -> str:
    """Return the default of a flag as `flag_value_text` does; "-" also for an empty text, which
    most engines treat as no value."""
    return "-" if value == "" else flag_value_text(value)


def flag_value_text(value: object) -> str:
    """Return a flag's value as a user reads it (on/off, JSON, text); "-" if it has no value, and
    two quotes for an empty text."""
    if value is None:
        return "-"
    if value == "":
        return "''"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}" if abs(value) < 1e6 else str(value)
    if isinstance(value, list | tuple):
        return " ".join(map(flag_value_text, value))
    if isinstance(value, dict):
        import json

        return json.dumps(value, separators=(",", ":"))
    return str(value)


def path_end_text(path: str, width: int) -> str:
    """Return the end of `path` in at most `width` cells, because long paths differ at their
    ends."""
    return path if len(path) <= width else "…" + path[len(path) - width + 1 :]


@lru_cache(maxsize=64)
def short_gpu_name(name: str) -> str:
    """Return a short name of a GPU: "RTX PRO 6000" for "NVIDIA RTX PRO 6000 Blackwell Workstation
    Edition"."""
    words = re.sub(
        r"\b(NVIDIA|GeForce|Tesla|Corporation|Blackwell|Workstation|Server|Edition|Generation)\b",
        "",
        name,
    )
    return re.sub(r"\s+(?=,)|(?<=\s)\s+", "", words).strip() or name


def setting_value_text(setting: str, value: object) -> str:
    """Return a setting's value as a text: "500 W", "210-1755 MHz", "on". `setting` is a key such as
    "gpu_clocks", or "gpu0.gpu_clocks" as in results."""
    from workbench.model.settings import (
        format_stored_setting_value,  # takes a tenth of the first frame
    )

    return NA if value is None else format_stored_setting_value(setting, value)


def setting_label(setting: str) -> str:
    """Return the label of a setting: "GPU clocks" for "gpu_clocks", "GPU0 GPU clocks" for
    "gpu0.gpu_clocks"."""
    from workbench.model.settings import label_with_gpu

    return label_with_gpu(setting)


def setting_text(setting: str, value: object) -> str:
    """Return a setting with its value: "power limit 500 W", "GPU0 GPU clocks 210-1755 MHz"."""
    return f"{setting_label(setting)} {setting_value_text(setting, value)}"


def alteration_text(alteration: Alteration) -> str:
    """Return an altered setting with its value before and now: "power limit 250 → 170 W". Return
    only the value now if the one before is not recorded."""
    if alteration.before is None:
        return setting_text(alteration.setting, alteration.now)
    before = setting_value_text(alteration.setting, alteration.before)
    now = setting_value_text(alteration.setting, alteration.now)
    return setting_change_text(alteration.setting, before, now)


def setting_change_text(setting: str, before: str, now: str) -> str:
    """Return a setting with two values, as "power limit 250 → 170 W" if both have the same unit."""
    number, _, unit = before.partition(" ")
    if unit == now.partition(" ")[2]:
        before = number
    return f"{setting_label(setting)} {before} {G.becomes} {now}"


def altered_setting_texts(alterations: Iterable[Alteration], gpu_count: int) -> list[str]:
    """Return a text for each altered setting, such as "GPU0-1 power limit 250 → 170 W". The GPUs
    are left out if all `gpu_count` GPUs of the host have the alteration, and if `gpu_count` is 0,
    because the GPUs are not known. A setting of another user has the user's name."""
    groups: dict[str, set[int]] = {}
    for one in alterations:
        text = f"{alteration_text(one)}{enclose_nonempty_text(', set by ', one.by)}"
        groups.setdefault(text, set()).add(one.gpu_index)
    return [
        text if len(indexes) >= max(gpu_count, 1) else f"{gpus_text(sorted(indexes))} {text}"
        for text, indexes in groups.items()
    ]


def alteration_gpus_now_and_before(alterations: Iterable[Alteration]) -> list[tuple[str, str, str]]:
    """Return altered settings as tuples (GPUs, setting with its present value, previous value),
    such as ("GPU0-1", "power limit 500 W", "600 W"). GPUs with the same alteration share one tuple.
    """
    groups: dict[tuple[str, str], list[int]] = {}
    for a in alterations:
        texts = setting_text(a.setting, a.now), setting_value_text(a.setting, a.before)
        groups.setdefault(texts, []).append(a.gpu_index)
    return [(gpus_text(indexes), now, before) for (now, before), indexes in groups.items()]


def measurement_origin_text(
    host: str, models: Iterable[str], preset_id: str | None, unix_s: float
) -> str:
    """Return on which host, with which models and preset, and when something was measured."""
    preset = enclose_nonempty_text("preset ", preset_id)
    return ", ".join(filter(None, (f"on {host}", *models, preset, day_and_time_text(unix_s))))


def restored_value_text(previous_value: str) -> str:
    """Return `previous_value` as a message about a revert names it: "the driver's default" if the
    previous value is the default or unknown, otherwise `previous_value` itself."""
    if previous_value in ("unknown", "default", "None", NA):
        return "the driver's default"
    return previous_value


def grouped_setting_texts(settings: Mapping[str, object]) -> list[str]:
    """Return settings as texts. GPUs with the same value share one text: ["GPU0-1 persistence mode
    on"] for {"gpu0.persistence": True, "gpu1.persistence": True}."""
    texts = (
        (key, setting_text(drop_gpu_from_setting_key(key), value))
        for key, value in settings.items()
    )
    return prefix_texts_with_gpus(texts)


def drop_gpu_from_setting_key(key: str) -> str:
    """Return the key of a setting without its GPU: "persistence" for "gpu0.persistence"."""
    return _GPU_OF_KEY.sub("", key)


def prefix_texts_with_gpus(keys_and_texts: Iterable[tuple[str, str]]) -> list[str]:
    """Return the texts of pairs (key of a setting, text), each once, behind the names of the GPUs
    that share it. A key such as "gpu0.persistence" names its GPU."""
    groups: dict[str, list[int]] = {}
    for key, text in keys_and_texts:
        gpus = groups.setdefault(text, [])
        if found := _GPU_OF_KEY.match(key):
            gpus.append(int(found[1]))
    return [f"{gpus_text(gpus)} {text}" if gpus else text for text, gpus in groups.items()]


def short_preset_name(preset_id: str, engine: str) -> str:
    """Return the preset's id without the engine's name at its beginning, because lists show the
    engine in another column. If fewer than 6 characters would remain, return the whole id."""
    short = preset_id.removeprefix(f"{engine}-")
    return short if len(short) > 5 else preset_id  # "vllm-any"
