"""The keys of the page of models: list, hash, copy and download the models of this host and of
others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

from workbench.model.errors import InputError
from workbench.model.findings import Level
from workbench.session.hosts.names import known_non_simulated_hosts
from workbench.tui.bindings import MODEL_KEYS
from workbench.tui.cells import Row, paragraph_rows
from workbench.tui.controllers.base import Controller
from workbench.tui.modals.form import Field, Form, Values
from workbench.tui.pages.base import Page
from workbench.tui.pages.models import ModelsPage, model_copy_rows, model_file_rows

if TYPE_CHECKING:
    from workbench.model.model_copy import ModelCopy
    from workbench.session.hosts.models import CopyReport, HostModels, ModelCheck, Progress
    from workbench.tui.controllers import Controllers

T = TypeVar("T")


class ModelController(Controller):
    def __init__(self, controllers: Controllers) -> None:
        super().__init__(controllers)
        self.all_hosts = False
        self._page: ModelsPage | None = None

    def open_models_page(self) -> None:
        """Open the page of models, and search this host for models."""
        self._page = ModelsPage(f"Models on {self.state.host.name}")
        self._page.replace_keys(MODEL_KEYS, self.controllers)
        self.services.pages.open(self._page)
        self.search_models()

    def search_models(self) -> None:
        """Search this host, or all hosts, for models, and show the models on the page of models. If
        that page is not open, open it."""
        page = self._displayed_page
        if page is None:
            self.open_models_page()
            return
        hosts = self.session.models.host_names_to_search(everywhere=self.all_hosts)
        page.title = f"Models on {self.state.host.name}"
        if self.all_hosts:
            page.title = "Models on all hosts"
        page.start_search_timer()

        def show_found_models(found: Sequence[HostModels]) -> None:
            page.show_found_models(found, with_host_headings=len(hosts) > 1)
            page.draw()

        self.run_in_background(
            self.session.models.find_copies("", hosts),
            show_found_models,
            on_error=page.close_page,
            exclusive_group="models",
        )

    @property
    def _displayed_page(self) -> ModelsPage | None:
        """The page of models; None if it is not open."""
        if self._page is None or self._page.frame is None:
            return None
        return self._page

    def toggle_all_hosts(self) -> None:
        self.all_hosts = not self.all_hosts
        self.search_models()

    def _selected_copy_or_show_message(self) -> ModelCopy | None:
        """Return the model copy under the cursor of the page of models. If there is none, show a
        message and return None."""
        page = self._displayed_page
        if page is None or page.copy_under_cursor is None:
            self.show_message(
                "no model is under the cursor",
                next_step="press C to list models, and move the cursor to one",
            )
            return None
        return page.copy_under_cursor

    # ---- keys of one copy

    def show_selected_files(self) -> None:
        copy = self._selected_copy_or_show_message()
        if copy is not None:
            self._open_files_page(copy)

    def _open_files_page(self, copy: ModelCopy) -> None:
        self.services.pages.open(
            Page(f"Files of {copy.model}", lambda width: model_file_rows(copy, width), kind="files")
        )

    def copy_model_path(self) -> None:
        copy = self._selected_copy_or_show_message()
        if copy is not None:
            self.copy_text(copy.path, copy.path)

    def hash_model_copy(self) -> None:
        """Hash every byte of the model copy under the cursor, on its host, and show its files with
        their hashes."""
        copy = self._selected_copy_or_show_message()
        if copy is None:
            return

        def report_hash_check(check: ModelCheck) -> None:
            copies = chain.from_iterable(host.copies for host in check.hosts)
            found = [one for one in copies if one.path == copy.path]
            files = chain.from_iterable(one.files for one in found)
            text, level = "is not complete", Level.WARN
            if any(file.is_damaged for file in files):
                text = "is damaged"
            elif check.ok:
                text, level = "is complete", Level.INFO
            self.show_message(f"{copy.model} on {copy.host} {text}", level)
            for one in found:
                self._open_files_page(one)

        self._start_model_work(
            f"hashing {copy.model}",
            lambda report: self.session.models.compare_copies(
                copy.id_or_path, (copy.host,), full=True, on_progress=report
            ),
            report_hash_check,
        )

    async def copy_model_to_host(self) -> None:
        """Ask for a target host, and copy the model copy under the cursor to that host."""
        copy = self._selected_copy_or_show_message()
        if copy is None:
            return
        hosts = tuple(
            dict.fromkeys(
                host.name for host in known_non_simulated_hosts() if host.name != copy.host
            )
        )
        if not hosts:
            self.show_message(
                "no host is known to copy the model to",
                next_step="press h, then ctrl+n to add a host",
            )
            return
        fields = (
            Field("target", "to host", options=hosts),
            Field("directory", "directory", hint="empty: target's model cache or folder"),
            Field("replace", "different files", options=("stop the copy", "are replaced")),
        )

        def make_intro_rows(width: int) -> list[Row]:
            return [*model_copy_rows(copy, width), ()]

        def start_copy(values: Values | None) -> None:
            if values is None:
                return
            target, directory = values["target"], values["directory"]
            replaces = values["replace"] == "are replaced"
            command = ["workbench", "models", "copy", copy.id_or_path]
            command += [
                "--from",
                copy.host,
                "--to",
                target,
                *_command_option_words("--to-dir", directory),
            ]
            if replaces:
                command.append("--replace")
            self._start_model_work(
                f"copying {copy.model} to {target}",
                lambda report: self.session.models.copy_to_host(
                    copy.id_or_path,
                    copy.host,
                    target,
                    directory=directory,
                    replace_different=replaces,
                    on_progress=report,
                ),
                self._report_model_copy,
                *command,
            )

        form = Form(
            f"Copy {copy.model} to another host",
            fields,
            intro=make_intro_rows,
            accept="copy",
            label_cells=17,
            wide=True,
        )
        await self.app.push_screen(form, start_copy)

    def _report_model_copy(self, report: CopyReport) -> None:
        if report.notes:
            self.show_message(report.report_text, Level.WARN, "; ".join(report.notes))
        else:
            self.show_message(report.report_text)
        self._refresh_models_page()

    # ---- downloads

    async def download_model(self) -> None:
        """Ask for the id of a model on the Hugging Face hub, and download the model with the hub's
        own program on this host."""
        name, model_id = self.state.host.name, ""
        if self.state.plan is not None:
            model_id = self.state.plan.plan.model
        if model_id.count("/") != 1 or model_id.startswith("/"):  # a path
            model_id = ""
        fields = (
            Field("model", "model", model_id, "ORG/NAME"),
            Field("revision", "revision", hint="branch, tag or commit; empty: main"),
            Field("directory", "directory", hint="empty: the Hugging Face cache"),
        )

        def make_intro_rows(width: int) -> list[Row]:
            text = (
                f"The hub's own program (hf or huggingface-cli) downloads it on {name}, with "
                "the host's HF_TOKEN."
            )
            return [*paragraph_rows(text, width, "dim"), ()]

        def require_model_id(values: Values) -> None:
            if not values["model"].strip():
                raise InputError("enter the id of a model, as ORGANIZATION/NAME")

        def start_download(values: Values | None) -> None:
            if values is None:
                return
            model = values["model"].strip()
            command = ["workbench", "--host", name, "models", "download", model]
            command += _command_option_words("--revision", values["revision"])
            command += _command_option_words("--to-dir", values["directory"])
            self._start_model_work(
                f"downloading {model}",
                lambda report: self.session.models.download(
                    model,
                    revision=values["revision"],
                    directory=values["directory"],
                    on_progress=lambda text: report(0, 0, text),
                ),
                lambda found: self._report_download(model, found),
                *command,
            )

        form = Form(
            f"Download to {name}",
            fields,
            intro=make_intro_rows,
            check=require_model_id,
            accept="download",
            label_cells=17,
            wide=True,
        )
        await self.app.push_screen(form, start_download)

    def _report_download(self, model: str, found: HostModels) -> None:
        self.show_message("; ".join(found.report_lines(model)))
        self._refresh_models_page()

    # ---- the work

    def _start_model_work(
        self,
        description: str,
        work: Callable[[Progress], Awaitable[T]],
        on_result: Callable[[T], object],
        *command_words: str,
    ) -> None:
        self.run_or_show_error(
            lambda: self.session.models.work.start_in_background(
                description, work, on_result, command_words
            )
        )

    def _refresh_models_page(self) -> None:
        if self._displayed_page is not None:
            self.search_models()


def _command_option_words(name: str, value: str) -> tuple[str, ...]:
    """Return the words of an option for a command; () without a value."""
    if not value:
        return ()
    return name, value
