"""What every group of actions needs: the session, and errors that become messages instead of ends."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from workbench.model.errors import InputError, WorkbenchError
from workbench.model.findings import Level
from workbench.session.state import Notice
from workbench.tui.cells import cut

if TYPE_CHECKING:
    from textual.screen import Screen

    from workbench.session.api import SessionApi

    _Base = Screen[None]
else:
    _Base = object

T = TypeVar("T")
COMMAND_CELLS = 60  # of a command in a message: enough to tell which


class Actions(_Base):
    """Mixin of the main screen. Subclasses call session methods only."""

    session: SessionApi

    if TYPE_CHECKING:  # given by the screen

        def tell(self, notice: Notice) -> None: ...
        def go(self, number: int) -> None: ...
        def count_down(self, text: str, seconds: float) -> None: ...
        def stop_counting(self) -> None: ...

    def say(self, text: str, level: Level = Level.INFO, next_step: str | None = None) -> None:
        self.tell(Notice(-1, level, text, next_step))

    def fail(self, error: WorkbenchError) -> None:
        where = f"{error.host}: " if error.host else ""
        command = f"  ({cut(error.command, COMMAND_CELLS)})" if error.command else ""
        # What was refused before anything happened needs no answer: it goes by itself.
        level = Level.WARN if isinstance(error, InputError) else Level.ERROR
        self.say(f"{where}{error.message}{command}", level, error.next_step)

    def attempt(
        self,
        work: Coroutine[Any, Any, T] | Callable[[], Coroutine[Any, Any, T]],
        then: Callable[[T], None] | None = None,
        *,
        failed: Callable[[], None] | None = None,
        only: str = "",
    ) -> None:
        """Run `work` beside the screen; an error becomes a message. `then` gets its outcome, `failed` hears of none.
        `only`: of works with this name the newest alone goes on."""

        async def run() -> None:
            try:
                outcome = await (work() if callable(work) else work)
            except Exception as error:
                self.explain(error)
                if failed is not None:
                    failed()
            else:
                if then is not None:
                    then(outcome)

        self.run_worker(run(), group=only or "session", exclusive=bool(only), exit_on_error=False)

    def explain(self, error: Exception) -> None:
        if isinstance(error, WorkbenchError):
            self.fail(error)
        elif isinstance(error, AttributeError) and error.obj is self.session:
            self.say(f"this session has no {error.name} yet", Level.WARN)
        else:
            from workbench.store.crash_files import defect_text

            text, details = defect_text(error)
            self.say(text, Level.ERROR, f"the screen goes on; {details}")

    def try_now(self, work: Callable[[], T]) -> T | None:
        """The same for the session's quick, synchronous methods."""
        try:
            return work()
        except (WorkbenchError, AttributeError) as error:
            self.explain(error)
            return None
