"""The user's own measure of one server: a command that writes the scores of its items into
files."""

from __future__ import annotations

import asyncio
import shlex
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.bench import own_command
from workbench.model.counts import count_of
from workbench.model.errors import BenchError
from workbench.model.lazy_dataclass import dataclass
from workbench.model.secrets import mask_argv
from workbench.quality.own_measure import ItemScores, read_item_scores

if TYPE_CHECKING:
    from workbench.session.bench.benchmark_load import BenchmarkLoad

ITEMS_PLACEHOLDER = "{items}"
DEFAULT_COMMAND_MINUTES = 120.0  # that a command may take on each side
_SHOWN_LAST_LINES = 3  # of a command that failed


@dataclass(frozen=True, slots=True)
class OwnMeasureCommand:
    """The command of the user, which comes only from the command line. `field` is the field of the
    score in the files that it writes; None for the first metric. On each side, it and everything
    that it started is ended after `minutes`."""

    argv: tuple[str, ...]
    field: str | None = None
    minutes: float = DEFAULT_COMMAND_MINUTES

    @property
    def shown_command(self) -> str:
        return shlex.join(mask_argv(self.argv))


async def run_score_command(
    command: OwnMeasureCommand, load: BenchmarkLoad, report_line: Callable[[str], None], title: str
) -> ItemScores:
    """Run the command against a server, and return the scores that it wrote. Raises BenchError if
    it fails, and InputError for files without usable scores."""
    spec, began = load.spec, time.monotonic()
    base_url = f"{spec.url}/v1"
    report_line(f"{title}: {command.shown_command}")
    with tempfile.TemporaryDirectory(prefix="workbench-items-") as directory:
        words = [word.replace(ITEMS_PLACEHOLDER, directory) for word in command.argv]
        env = own_command.command_environment(base_url, spec.model, load.server_api_key)
        with own_command.replace_server_placeholders(words, base_url, spec.model) as argv:
            done = await own_command.run_command(
                argv,
                {**env, "WORKBENCH_ITEMS": directory},
                deadline_s=60 * command.minutes,
                title="command of your measure",
            )
        if done.exit_code:
            said = " | ".join(done.output[-_SHOWN_LAST_LINES:])
            raise BenchError(
                f"the command of your measure ended with exit code {done.exit_code}: {said}",
                command=command.shown_command,
            )
        scores = await asyncio.to_thread(read_item_scores, Path(directory), command.field)
    took_s = time.monotonic() - began
    report_line(f"{title}: {count_of(len(scores.by_item), 'item')} scored in {took_s:.0f} s")
    return scores
