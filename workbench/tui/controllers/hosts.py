"""The keys of hosts: switch to another host, examine it, connect again, and trust the key of a
host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

from textual.binding import BindingType

from workbench.model.counts import count_of
from workbench.model.server_run import living_servers_sentence
from workbench.session.hosts.names import CLUSTER_PREFIX
from workbench.tui.bindings import HOST_KEYS, Key, make_textual_bindings
from workbench.tui.cells import Row, cut_text, pad_text, paragraph_rows
from workbench.tui.controllers.base import Controller, import_module_in_thread
from workbench.tui.glyphs import G
from workbench.tui.modals.ask import Confirm, leaving_warning_rows
from workbench.tui.modals.base import Choice, PickModal
from workbench.tui.modals.form import Field, Form, Values
from workbench.tui.pages.base import Page
from workbench.tui.pages.doctor import host_examination_rows, known_trap_rows

if TYPE_CHECKING:
    from workbench.session.hosts.doctor import HostReport
    from workbench.session.hosts.names import KnownHost
    from workbench.tui.controllers import Controllers

TRIAL = (
    "A small program copies 64 MiB between each pair of GPUs, with the torch and NCCL of an engine of "
    "this host, and compares every byte. A copy that hangs is ended after 20 s. The program takes "
    "0.6 GiB on each GPU and slows a server that runs there. It changes no setting."
)
DEMO_PROFILE = "four-pcie"

NAME_CELLS, LABEL_CELLS, WAY_CELLS = 28, 30, 60
FIELDS = (
    Field("name", "name", hint="the name of the host in commands"),
    Field("ssh", "ssh", hint="alias, HOST or USER@HOST; empty: name"),
    Field("container", "container", hint="podman:NAME …; empty: no container"),
    Field("label", "label", hint="any text"),
)


def _host_list_text(host: KnownHost, current_host: str, name_cells: int, state_text: str) -> str:
    simulated = now_here = ""
    if host.name.startswith("sim:"):
        simulated = "simulated: needs no GPU"
    if host.name == current_host:
        now_here = "(now)"
    parts = (
        cut_text(host.label, LABEL_CELLS),
        state_text,
        cut_text(host.way, WAY_CELLS),
        simulated,
        host.source,
        now_here,
    )
    return f"{pad_text(host.name, name_cells)} {'  '.join(filter(None, parts))}"


class HostList(PickModal):
    """The list of hosts, from which the user chooses one by name. If the user pressed one of the
    keys `HOST_KEYS` instead of enter, `pressed` is that key, which acts on the host under the
    cursor."""

    BINDINGS: ClassVar[list[BindingType]] = make_textual_bindings(HOST_KEYS)

    def __init__(self, items: Sequence[Choice], chosen: str) -> None:
        super().__init__("Work on another host", items, chosen=chosen, filter=True)
        self.keys += "".join(f"   {key.name_on_keyboard} {key.label}" for key in HOST_KEYS)
        self.pressed: Key | None = None

    def update_host_texts(self, items: Sequence[Choice]) -> None:
        """Update the texts of the listed hosts. `items` has the hosts that are listed already. The
        filter and the cursor stay as they are."""
        texts = {name: (name, text, role) for name, text, role in items}
        self.all = items
        self.choices.set_items([texts.get(item[0], item) for item in self.choices.items])

    def action_do(self, key: str) -> None:
        """Close the list because the user pressed one of `HOST_KEYS`. `key` is the id of that key,
        such as "hosts ctrl+n"."""
        self.pressed = next((one for one in HOST_KEYS if one.id == key), None)
        if self.pressed is not None:
            name, *_ = self.choices.current_item or ("",)
            self.dismiss(name)


class HostController(Controller):
    def __init__(self, controllers: Controllers) -> None:
        super().__init__(controllers)
        self.under_cursor = ""  # in the list of hosts, when a key was pressed there
        self.from_list = False  # the action that starts now was chosen in the list of hosts
        # what the last check or reading found, by the name of a host or cluster
        self.last_state_texts: dict[str, str] = {}

    async def pick_host(self, cursor_host: str = "") -> None:
        """Open the list of hosts with the cursor on the host `cursor_host`, or on the present host.
        While the list is open, read the state of each cluster's servers and add it to the cluster's
        row."""
        now = self.state.host.name
        known = self.run_or_show_error(self.session.hosts.known_hosts, ())
        cells = min(NAME_CELLS, max((len(host.name) for host in known), default=0))

        def make_list_items() -> list[Choice]:
            listed = []
            for host in known:
                about = _host_list_text(host, now, cells, self._last_known_state_text(host.name))
                listed.append((host.name, about, "text"))
            return listed

        listed = HostList(make_list_items(), cursor_host or now)

        async def run_key_or_switch_host(name: str | None) -> None:
            if listed.pressed is not None:
                self.under_cursor, self.from_list = name or "", True
                running = listed.pressed.run(self.controllers)
                if running is not None:
                    await running
                self.from_list = False
            elif name and name != now:
                await self.switch_host(name)

        async def read_cluster_state(name: str) -> None:
            await import_module_in_thread("workbench.session.servers.cluster_servers")
            from workbench.session.servers.cluster_servers import living_cluster_servers_text
            from workbench.session.session import Session

            self.last_state_texts[name] = await living_cluster_servers_text(name, Session.of_host)
            if listed.is_current:
                listed.update_host_texts(make_list_items())

        await self.app.push_screen(listed.add_class("-wide"), run_key_or_switch_host)
        for host in known:
            if host.name.startswith(CLUSTER_PREFIX) and host.name != now:
                self.run_in_background(
                    read_cluster_state(host.name), exclusive_group=f"state of {host.name}"
                )

    def _last_known_state_text(self, name: str) -> str:
        """Return what is known about a host or cluster, as text for its row in the list of hosts.
        It is "" for a host that was not checked, and "asking …" for a cluster that was not read."""
        if not name.startswith(CLUSTER_PREFIX):
            return self.last_state_texts.get(name, "")
        if name == self.state.host.name:
            return living_servers_sentence(self.state.servers)
        return self.last_state_texts.get(name, "asking …")

    def open_host_check(self) -> None:
        """Open the page that checks the host or cluster under the cursor of the host list. If the
        list is not open, check the present host."""
        self.controllers.checks.open_check_page(self.under_cursor or self.state.host.name)

    async def add_host(self) -> None:
        """Show a form for a new host, add the host to hosts.toml, and open the list of hosts. A
        form that the user leaves with escape leads back to the list from which it was opened."""
        from_list = self.from_list

        async def store_host(values: Values) -> None:
            self.session.hosts.add_host_entry(
                values["name"], values["ssh"], values["container"], values["label"]
            )

        async def return_to_list(values: Values | None) -> None:
            if values is not None:
                await self.pick_host(values["name"])
            elif from_list:
                await self.pick_host(self.under_cursor)

        form = Form(
            "Add a host to hosts.toml",
            FIELDS,
            submit=store_host,
            accept="add",
            label_cells=11,
            wide=True,
        )
        await self.app.push_screen(form, return_to_list)

    async def switch_to_simulated_host(self) -> None:
        """Switch to a simulated host with four GPUs, for trying Workbench without a GPU."""
        if self.state.simulated:
            self.show_message(
                f"{self.state.host.name} is simulated already; press h to work on another host"
            )
        else:
            await self.switch_host(f"sim:{DEMO_PROFILE}")

    async def switch_host(
        self, host_name: str, on_connecting: Callable[[], None] = lambda: None
    ) -> None:
        """Switch Workbench to the host `host_name`, and call `on_connecting` once the connection is
        being opened. Ask for consent first if the switch ends a measurement or a copy of a model,
        or reverts GPU settings of the present host."""
        now = self.state.host.name

        def make_question_rows(width: int) -> list[Row]:
            rows = leaving_warning_rows(self.state, width)
            if any(a.state != "kept" and not a.by for a in self.state.alterations):
                about = (
                    f"{G.alert} GPU settings of {now} are altered: the guard reverts them "
                    "when Workbench has left."
                )
                rows += paragraph_rows(f"{about} L in pane 6 leaves them in force.", width, "warn")
            return rows

        def switch_if_confirmed(yes: bool | None) -> None:
            if yes:
                self.show_message(f"leaving {now} …")
                self.run_in_background(
                    self.session.switch_host(host_name), lambda _: on_connecting()
                )

        if make_question_rows(80):
            await self.app.push_screen(
                Confirm(f"Leave {now}", make_question_rows, yes=f"work on {host_name}", no="stay"),
                switch_if_confirmed,
            )
        else:
            switch_if_confirmed(True)

    def open_doctor_page(self) -> None:
        """Examine the host for missing programs, permissions and drivers, and show the findings on
        a page. The key R of the page repeats the examination."""
        from workbench.session.hosts.doctor import examine_host

        name = self.state.host.name
        found: list[HostReport] = []
        page = Page(
            f"Doctor: {name}",
            lambda width: host_examination_rows(found, width),
            lambda: {
                "R": ("examine again", examine_again),
                "m": ("copies between GPUs", ask_to_test_gpu_copies),
                "t": ("known traps", self.open_known_traps),
            },
        )

        def show_report(report: HostReport) -> None:
            found[:] = [report]
            page.title = f"Doctor: {name}, {count_of(len(report.findings), 'finding')}"
            page.draw()

        def examine_again() -> None:
            found.clear()
            page.draw()
            self.run_in_background(
                examine_host(self.session),
                show_report,
                on_error=page.close_page,
                exclusive_group="doctor",
            )

        async def ask_to_test_gpu_copies() -> None:
            def test_copies_if_confirmed(yes: bool | None) -> None:
                if yes:
                    found.clear()
                    page.title = f"Doctor: {name}, copying between the GPUs (at most 5 min)"
                    page.draw()
                    self.run_in_background(
                        test_copies_between_gpus(),
                        lambda _: examine_again(),
                        on_error=examine_again,
                        exclusive_group="gpu paths",
                    )

            await self.app.push_screen(
                Confirm(
                    "Try the paths between the GPUs",
                    lambda width: paragraph_rows(TRIAL, width),
                    yes="copy and compare",
                    no="do not",
                ),
                test_copies_if_confirmed,
            )

        async def test_copies_between_gpus() -> None:
            from workbench.session.hosts.gpu_paths import try_copies_between_gpus

            for finding in (await try_copies_between_gpus(self.session)).reasons_nothing_was_copied:
                self.show_message(finding.text, finding.level, finding.fix)

        self.services.pages.open(page)
        examine_again()

    def open_known_traps(self) -> None:
        """Open a page with the published traps of serving, and what of Workbench sees each."""
        self.services.pages.open(Page("Known traps of serving", known_trap_rows))

    def reconnect_host(self) -> None:
        self.run_in_background(self.session.retry_connection())

    async def ask_about_host_key(self) -> None:
        """Show the fingerprint of an unknown host key, and connect if the user confirms that it is
        right."""
        host = self.state.host

        def accept_host_key_if_confirmed(yes: bool | None) -> None:
            if yes:
                self.run_in_background(self.session.accept_host_key())

        box = Confirm(
            f"Unknown host key of {host.name}",
            lambda w: paragraph_rows(host.message or "", w),
            yes="the fingerprint is right: connect",
            no="do not connect",
        )
        await self.app.push_screen(box, accept_host_key_if_confirmed)
