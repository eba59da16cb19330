"""The columns of the fleet's table: their texts and widths, and functions that sort and filter the
hosts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING

from workbench.model.gpu_readings import IN_FLEET
from workbench.model.lazy_dataclass import dataclass
from workbench.tui.cells import (
    Run,
    cut_text,
    join_runs,
    pad_text,
    pad_text_with_gap,
    row_text,
    width_of,
)
from workbench.tui.formats import NA, duration_text
from workbench.tui.glyphs import G
from workbench.tui.widgets.graph import EIGHTHS, bar_height_eighths

if TYPE_CHECKING:
    from workbench.model.gpu import GpuSample
    from workbench.model.gpu_readings import Reading
    from workbench.session.fleet.state import FleetHost, FleetServer

# state of a host: its sign, its word, the role of both, and its place in the order by state
STATES = {
    "live": (G.on, "live", "good", 4),
    "waiting": ("~", "waiting", "warn", 3),
    "connecting": ("~", "connect", "warn", 3),
    "no GPUs": ("!", "no GPUs", "warnb", 2),
    "stale": ("!", "old", "warnb", 1),
    "lost": ("x", "lost", "bad", 0),
    "down": ("x", "down", "bad", 0),
    "refused": ("x", "refused", "bad", 0),
}
STATE_CELLS, MARK_CELLS = 11, 3
LEAST_NAME, MOST_NAME = 8, 32
FEWEST_GPU_CELLS = 4


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the fleet's table with one number per host. `cells` is its width, `value` returns
    the number or None, and `text` formats the number. A screen of less than `least_width` cells
    leaves it out."""

    title: str
    cells: int
    value: Callable[[FleetHost], float | None]
    text: Callable[[float], str]
    least_width: int = 0


def _column_from_reading(reading: Reading) -> Column:
    column = reading.fleet
    assert column is not None

    def aggregate_reading(host: FleetHost) -> float | None:
        return host.aggregate_gpu_readings(reading.field, column.of_gpus)

    return Column(
        column.title, column.cells, aggregate_reading, column.text.format, column.least_width
    )


NUMBERS: tuple[Column, ...] = (
    *map(_column_from_reading, IN_FLEET),
    Column("mem", 5, lambda h: h.memory_pct, lambda v: f"{v:.0f}%"),
    Column("tok/s", 8, lambda h: h.tok_s, lambda v: f"{v:,.0f}"),
)
ORDERS = ("host", "state", *(column.title for column in NUMBERS))


def sort_hosts(hosts: Sequence[FleetHost], order: str, reverse: bool) -> list[FleetHost]:
    """Return the hosts sorted by the column `order`. "host" keeps the order in which the user named
    them, "state" begins with the worst state, and any other column with the highest number.
    `reverse` reverses the order, but hosts without a number are always last."""
    if order == "host":
        ordered = list(hosts)
        if reverse:
            ordered.reverse()
        return ordered
    if order == "state":
        return sorted(hosts, key=lambda host: STATES[host.state][3], reverse=reverse)
    value = next(column.value for column in NUMBERS if column.title == order)
    known: list[tuple[float, FleetHost]] = []
    unknown: list[FleetHost] = []
    for host in hosts:
        number = value(host)
        if number is None:
            unknown.append(host)
        else:
            known.append((number, host))
    known.sort(key=itemgetter(0), reverse=not reverse)
    return [*(host for _, host in known), *unknown]


def host_matches_filter(host: FleetHost, filter_words: str) -> bool:
    """Return whether the host's row contains each word of `filter_words`, in its name, label,
    state, GPUs, servers or marks. Upper and lower case do not matter."""
    text = " ".join(_texts_searched_by_filter(host)).casefold()
    return all(word in text for word in filter_words.casefold().split())


def _texts_searched_by_filter(host: FleetHost) -> list[str]:
    words = [host.name, host.label, host.state, *host.throttle_reasons, *host.alerts]
    if host.telemetry is not None:
        words += (info.name for info in host.telemetry.infos)
    for server in host.servers:
        words += (server.engine, server.model, server.state, f":{server.port}")
    if host.altered:
        words.append("altered")
    if host.throttle_reasons:
        words.append("throttled")
    if host.current_alerts:
        words.append("alert")
    if host.busy_gpu_count:
        words.append("busy")
    elif host.is_live:
        words.append("idle")
    return words


# -- the cells of a host ---------------------------------------------------------------------------


def host_state_texts(host: FleetHost) -> list[Run]:
    """Return the table cell with the state of the host, such as "live", as pairs (text, role) that
    fill STATE_CELLS columns. If the last reading of the host is old, the text also has the age of
    this reading."""
    sign, word, role, _ = STATES[host.state]
    text = f"{sign} {word}"
    if host.age_s is not None and host.state in ("stale", "lost"):
        text = f"{sign} {duration_text(host.age_s)} {word}"
    return [(pad_text_with_gap(text, STATE_CELLS), role)]


def altered_and_alert_signs(host: FleetHost) -> list[Run]:
    """Return two signs as pairs (text, role): one if settings of the host are altered, and one if
    an alert is active, or else if GPUs are throttled. A blank stands for a sign that does not
    apply."""
    altered, sign = " ", (" ", "text")
    if host.altered:
        altered = G.alert
    if host.current_alerts:
        sign = ("A", "bad")
    elif host.is_live and host.throttle_reasons:
        sign = ("!", "warnb")
    return [(altered, "warn"), sign, (" ", "text")]


def gpu_utilization_texts(host: FleetHost, max_cells: int) -> list[Run]:
    """Return one character per GPU, as pairs (text, role): a block as high as the GPU's
    utilization. If the host has more than `max_cells` GPUs, the last character is "…"."""
    role = role_or_dim_if_old(host, "util")
    runs = [_gpu_utilization_text(gpu, role) for gpu in host.gpus]
    if len(runs) > max_cells:
        runs = [*runs[: max_cells - 1], (G.more, "dim")]
    return [*runs, (" " * (max_cells - len(runs)), "text")]


def role_or_dim_if_old(host: FleetHost, role: str) -> str:
    """Return `role`, or "dim" if the readings of the host are old."""
    return role if host.is_live else "dim"


def _gpu_utilization_text(gpu: GpuSample, role: str) -> Run:
    if not gpu.has_readings:
        return ("x", "bad")
    level = bar_height_eighths(gpu.gpu_util_pct, 0.0, 100.0, EIGHTHS)
    if level == 0:
        return "?", role
    return G.levels[level - 1], role


def columns_for_width(width: int) -> list[Column]:
    """Return the columns with numbers that a screen of `width` cells shows."""
    return [column for column in NUMBERS if column.least_width <= width]


def number_column_texts(host: FleetHost, width: int) -> list[Run]:
    """Return the host's numbers as pairs (text, role), one for each column that a screen of `width`
    cells shows. Old values are grey."""
    role = role_or_dim_if_old(host, "text")
    runs: list[Run] = []
    for column in columns_for_width(width):
        runs.append(
            (pad_text(_column_number_text(column, host), column.cells, align_right=True), role)
        )
    return runs


def _column_number_text(column: Column, host: FleetHost) -> str:
    """Return the host's number in a column as text; "n/a" or, for tok/s only, "-" without one.
    The "-" says that none of the host's servers is READY, so that none can have a token rate."""
    value = column.value(host)
    if value is not None:
        return column.text(value)
    if column.title == "tok/s" and host.servers_read and not host.ready_server_count:
        return "-"
    return NA


def host_server_texts(host: FleetHost, max_cells: int) -> list[Run]:
    """Return texts about the host's servers as pairs (text, role) that fill at most `max_cells`
    columns. If they are longer, shorten the text of a single server; of several servers, return
    only how many are ready."""
    if not host.servers:
        return _no_server_texts(host, max_cells)
    row = join_runs(map(_server_text, host.servers), ("  ", "text"))
    if len(row_text(row)) <= max_cells:
        return list(row)
    if len(host.servers) == 1:
        server = host.servers[0]
        sign, role = _server_sign_and_role(server)
        brief = f"{sign} {server.engine} {server.state}"
        if width_of(brief) > max_cells:
            brief = cut_text(f"{sign} {server.state}", max_cells)
        return [(brief, role)]
    ready, role = host.ready_server_count, "good"
    if not ready:
        role = "warn"
    shown = f"{ready}/{len(host.servers)}"
    if ready == len(host.servers):
        shown = f"{ready}"
    return [(cut_text(f"{G.on} {shown} ready", max_cells), role)]


def _no_server_texts(host: FleetHost, max_cells: int) -> list[Run]:
    if not host.is_live:
        return []
    if not host.servers_read:
        return [(NA, "dim")]
    if max_cells < len("no server"):
        return [("none", "dim")]
    return [("no server", "dim")]


def _server_sign_and_role(server: FleetServer) -> Run:
    if server.is_ready_with_suspect_text:
        return "?", "warn"
    if server.can_answer:
        return G.on, "good"
    if server.state in ("starting", "stopping"):
        return "~", "warn"
    return "x", "bad"


def _server_text(server: FleetServer) -> Run:
    sign, role = _server_sign_and_role(server)
    name = server.engine
    if server.port is not None:
        name += f" :{server.port}"
    model = server.model.rpartition("/")[2]
    return f"{sign} {name} {server.state} {model}".rstrip(), role
