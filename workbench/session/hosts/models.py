"""Model files on hosts: where each host has a model, whether the copies are complete and the same,
copies to other hosts, and downloads."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from workbench.hosts.base import Host, HostUnreachable, SshAddress
from workbench.hosts.cluster import ClusterHost
from workbench.model.errors import HostError, InputError, WorkbenchError
from workbench.model.host_entry import HostEntry
from workbench.model.lazy_dataclass import dataclass
from workbench.model.model_copy import (
    HUB,
    ModelCopy,
    list_copy_differences,
    shared_files_without_hashes,
    size_text,
)
from workbench.server import model_download, model_inventory, model_shipment, model_transfer
from workbench.server.model_fingerprint import arguments_to_locate_model
from workbench.server.model_inventory import SearchPlaces
from workbench.session.hosts.model_work import ModelWork
from workbench.session.hosts.names import LOCAL_HOST_NAME
from workbench.store.hosts_file import HostsStore

if TYPE_CHECKING:
    from workbench.model.plan import LaunchPlan
    from workbench.server.model_shipment import RemainingFiles, Shipment
    from workbench.session.session import Session

# bytes that are done, their total, and what is under way
Progress = Callable[[int, int, str], None]
_IGNORE_PROGRESS: Progress = lambda done, total, text: None  # noqa: E731


@dataclass(frozen=True, slots=True)
class HostModels:
    """The copies of models on one host. If they cannot be read, `problem` is the reason, and there
    are no copies."""

    host: str
    copies: tuple[ModelCopy, ...] = ()
    problem: str | None = None

    @property
    def has_complete_copies(self) -> bool:
        """Whether the host has copies, all of which are complete. False if it cannot be read."""
        return bool(self.copies) and all(copy.is_complete for copy in self.copies)

    def report_lines(self, model: str = "") -> Iterator[str]:
        """Yield a line of text for each copy on the host. If there is none, or the host cannot be
        read, yield one line that says so. `model` is the model that was searched, "" for all."""
        if self.problem:
            yield f"{self.host}: cannot be read: {self.problem}"
        elif not self.copies:
            missing = f"no files of {model}" if model else "no models"
            yield f"{self.host}: {missing}"
        for copy in self.copies:
            yield f"{self.host}: {copy.text}"

    def as_json(self) -> dict[str, Any]:
        return {
            "host": self.host,
            "problem": self.problem,
            "copies": [copy.as_json() for copy in self.copies],
        }


@dataclass(frozen=True, slots=True)
class ModelCheck:
    """The copies of one model on several hosts. `differences` has a text for each difference from
    the first copy, and `unhashed` the names of the files of which only the sizes were compared."""

    hosts: tuple[HostModels, ...]
    differences: tuple[str, ...] = ()
    unhashed: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.differences and all(host.has_complete_copies for host in self.hosts)

    @property
    def copies(self) -> list[ModelCopy]:
        """The copies on all hosts, in the order of the hosts."""
        return list(chain.from_iterable(host.copies for host in self.hosts))

    def report_lines(self, model: str) -> Iterator[str]:
        """Yield a line for each copy of `model`, then how the copies differ, or how far they were
        compared."""
        for host in self.hosts:
            yield from host.report_lines(model)
        for text in self.differences:
            yield f"different: {text}"
        if self.differences:
            return
        if self.unhashed:
            yield (
                f"{len(self.unhashed)} large files were compared by their sizes; --hash "
                "compares every byte"
            )
        elif len(self.copies) > 1:
            yield "all copies are the same"


@dataclass(frozen=True, slots=True)
class CopyReport:
    """The outcome of copying a model's files to another host."""

    model: str
    source: str
    target: str
    path: str  # of the model on the target
    way: str  # how the bytes went; "" if none were missing
    sent_bytes: int = 0
    seconds: float = 0.0
    present: tuple[str, ...] = field(default=())  # files that were there already
    notes: tuple[str, ...] = ()

    @property
    def report_text(self) -> str:
        """The outcome of the copy as one line: where the model is now, how many bytes were sent, by
        which method, and how fast."""
        if not self.way:
            return f"{self.target} has {self.model} already: {self.path}"
        speed = size_text(self.sent_bytes / max(self.seconds, 0.001))
        text = (
            f"{self.model} is at {self.path} on {self.target}: {size_text(self.sent_bytes)} "
            f"{self.way}, "
        )
        return f"{text}{self.seconds:.0f} s, {speed}/s"


class Models:
    """Finds and copies model files on this session's host and on other hosts."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.work = ModelWork(session.core)  # what runs in the background of a screen

    @property
    def _hosts_store(self) -> HostsStore:
        """The content of hosts.toml, read again because the screen may have added a host."""
        return HostsStore()

    def search_paths_on_host(self, host: str, more: Sequence[str] = ()) -> SearchPlaces:
        """Return the places to search for models on a host: those in its entry in hosts.toml, and
        the paths `more`."""
        entry = self._entry_of_host(host)
        return SearchPlaces(entry.env, (*entry.models, *more))

    def _entry_of_host(self, host: str) -> HostEntry:
        """Return the entry of a host in hosts.toml; an empty one if it has none."""
        return self._hosts_store.host(host) or HostEntry(host)

    def host_names_to_search(self, *, everywhere: bool = False) -> Sequence[str | None]:
        """Return the names of the hosts to search: this session's host, or all nodes if it is a
        cluster. With `everywhere`, also this machine and all hosts of hosts.toml. None stands for
        this session's host."""
        own = self._session.host
        names: list[str | None] = [None]
        if isinstance(own, ClusterHost):
            names = [node.name for node in own.nodes]
        if everywhere:
            names += [LOCAL_HOST_NAME, *self._hosts_store.content.hosts]
        return [*dict.fromkeys(None if name == own.name else name for name in names)]

    async def find_copies(
        self, model: str = "", hosts: Sequence[str | None] = (None,)
    ) -> Sequence[HostModels]:
        """Return the copies of `model`, or of all models for "", on each host. None stands for this
        session's host. A host that cannot be read has its problem in the result."""
        return await asyncio.gather(*(self._read_copies(host, model) for host in hosts))

    async def _read_copies(self, name: str | None, model: str) -> HostModels:
        host = name or self._session.host.name
        try:
            session = await self._session.hosts.get_session(name)
            found = await model_inventory.find_copies(
                session.host, self.search_paths_on_host(session.host.name), model
            )
        except (WorkbenchError, TimeoutError) as error:
            return HostModels(host, problem=str(error))
        return HostModels(host, tuple(sorted(found, key=lambda copy: (copy.model, copy.path))))

    async def find_copies_of_plan(self, plan: LaunchPlan) -> HostModels:
        """Return the copies of a plan's model on this session's host. The cache directory of the
        model hub is read from the plan's environment variables."""
        env, host = plan.env_texts, self._session.host
        places = self.search_paths_on_host(host.name)
        places = SearchPlaces({**places.env, **env}, places.paths)
        model = arguments_to_locate_model(plan, env, plan.workdir)[0]
        return HostModels(host.name, tuple(await model_inventory.find_copies(host, places, model)))

    async def compare_copies(
        self,
        model: str,
        hosts: Sequence[str | None] = (None,),
        *,
        full: bool = False,
        on_progress: Progress = _IGNORE_PROGRESS,
    ) -> ModelCheck:
        """Compare the copies of a model on each host (None: this session's) with the first copy,
        and return the outcome. With `full`, every byte is hashed on its host; else large files are
        compared by their sizes only. A host that cannot be read has its problem in the result."""
        found = []
        for on_host in await self.find_copies(model, hosts):
            found.append(await self._hash_copies(on_host, full, on_progress))
        check = ModelCheck(tuple(found))
        copies = check.copies
        differences: list[str] = []
        unhashed: dict[str, None] = {}
        for other in copies[1:]:
            differences += list_copy_differences(copies[0], other)
            unhashed |= dict.fromkeys(shared_files_without_hashes(copies[0], other))
        return replace(check, differences=tuple(differences), unhashed=tuple(unhashed))

    async def _hash_copies(
        self, found: HostModels, full: bool, on_progress: Progress
    ) -> HostModels:
        if not found.copies:
            return found
        session = await self._session.hosts.get_session(found.host)
        copies = []
        for copy in found.copies:
            looked = await model_inventory.add_full_file_sizes(session.host, copy)
            if full:
                text = f"hashing {copy.path} on {found.host}"
                looked = await model_inventory.add_hashes(
                    session.host,
                    looked,
                    lambda done, total, text=text: on_progress(done, total, text),  # type: ignore[misc]
                )
            copies.append(looked)
        return replace(found, copies=tuple(copies))

    # ---- copies to other hosts

    async def copy_to_host(
        self,
        model: str,
        source: str,
        target: str,
        *,
        directory: str = "",
        replace_different: bool = False,
        follow_links: bool = False,
        on_progress: Progress = _IGNORE_PROGRESS,
    ) -> CopyReport:
        """Copy a model's files from one host to another, and continue a copy that was interrupted.
        Raises InputError if the source has no complete copy, if the target has different files and
        `replace_different` is False, or if links lead out of the model and `follow_links` is False.
        Raises HostError if a host fails."""
        if source == target:
            raise InputError(
                "the two hosts of the copy are the same",
                next_step="give two hosts: --from A --to B",
            )
        near, far = [await self._session.hosts.get_session(name) for name in (source, target)]
        copy = await self._find_complete_copy(near, model)
        wanted = directory or self._target_directory(target, copy)
        at = await model_shipment.resolve_absolute_path(
            far.host, self.search_paths_on_host(target), wanted
        )
        shipment = model_shipment.plan_shipment(copy, at, follow_links=follow_links)
        started = time.monotonic()
        rest = await model_shipment.find_remaining_files(
            near.host, far.host, shipment, replace_different
        )
        sent = sum(shipment.sizes[name] - rest.staged.get(name, 0) for name in rest.names)
        way, notes = await self._send_files_and_describe(
            near.host, far.host, shipment, rest, replace_different, on_progress
        )
        await model_shipment.put_files_in_place(far.host, shipment, rest.names, replace_different)
        seconds = time.monotonic() - started
        return CopyReport(
            copy.model,
            source,
            target,
            shipment.target,
            way,
            sent,
            seconds,
            rest.present,
            tuple(notes),
        )

    async def _find_complete_copy(self, session: Session, model: str) -> ModelCopy:
        name = session.host.name
        found = await model_inventory.find_copies(
            session.host, self.search_paths_on_host(name), model
        )
        complete = [copy for copy in found if copy.is_complete]
        if len(complete) == 1:
            return complete[0]
        if len(complete) > 1:
            paths = ", ".join(copy.path for copy in complete)
            step = "give the path of one of them in place of the model's name"
            raise InputError(
                f"{name} has {len(complete)} copies of {model}: {paths}", host=name, next_step=step
            )
        problems = [f"{copy.path}: {', '.join(copy.problems)}" for copy in found]
        why = "; ".join(problems) or "no files of it were found"
        step = f"workbench --host {name} models list, or models download {model}"
        raise InputError(f"there is no complete copy of {model}: {why}", host=name, next_step=step)

    def _target_directory(self, target: str, copy: ModelCopy) -> str:
        """Return the directory on the host `target` into which a copied model goes: the first one
        that hosts.toml names, or else a directory of the same path as on the source. "" stands for
        the model hub's cache, if the source has the model there."""
        if copy.kind == HUB:
            return ""
        models = self._entry_of_host(target).models
        return models[0] if models else copy.path.rpartition("/")[0]

    async def _send_files_and_describe(
        self,
        near: Host,
        far: Host,
        shipment: Shipment,
        rest: RemainingFiles,
        replace_different: bool,
        on_progress: Progress,
    ) -> tuple[str, Sequence[str]]:
        """Send the files that the host `far` lacks from the host `near` into a temporary directory
        on `far`: by rsync between the hosts if possible, else through this machine. After a lost
        link, continue as long as bytes have arrived since the last loss. Return (how the files were
        sent, notes on interruptions); the first is "" if no file was missing."""
        if not rest.names:
            return "", ()
        total = sum(shipment.sizes.values())
        whole = sum(shipment.sizes[name] for name in rest.names)

        def report_progress(done: int, text: str) -> None:
            on_progress(total - whole + done, total, text)

        notes: list[str] = []
        way = await model_transfer.find_rsync_way(
            near, far, await self._hosts_and_ssh_addresses(near, far)
        )
        text = way.text if way else "through this machine"
        await far.run(["mkdir", "-p", "--", shipment.staging_path], check=True)
        while rest.names:
            before = sum(rest.staged.values())
            try:
                if way is not None:
                    await model_transfer.send_by_rsync(way, shipment, rest, report_progress)
                else:
                    await model_transfer.send_through_this_machine(
                        near, far, shipment, rest, report_progress
                    )
                break
            except HostUnreachable:
                rest = await model_shipment.find_remaining_files(
                    near, far, shipment, replace_different
                )
                if sum(rest.staged.values()) <= before:
                    raise
                notes.append(
                    f"the link was cut; the copy went on at {size_text(sum(rest.staged.values()))}"
                )
            except HostError as error:
                if way is None:
                    raise
                notes.append(f"{error.message}; the rest went through this machine")
                way, text = None, f"{text}, then through this machine"
                rest = await model_shipment.find_remaining_files(
                    near, far, shipment, replace_different
                )
        return text, notes

    async def _hosts_and_ssh_addresses(
        self, near: Host, far: Host
    ) -> Sequence[tuple[Host, SshAddress]]:
        """Return pairs (host, its SSH address): the addresses at which one of two hosts may reach
        the other, first `far` and then `near`. Of each host, addresses in a cluster's own network
        come first."""
        found: list[tuple[Host, SshAddress]] = []
        for host, other in ((far, near), (near, far)):
            address = await host.ssh_address()
            if address is None:
                continue
            if other.is_local:
                found.append((host, SshAddress(address.alias)))
                continue
            for cluster in self._hosts_store.content.clusters.values():
                own_addresses = {node.host: node.address for node in cluster.nodes}
                own = own_addresses.get(host.name)
                if own and other.name in own_addresses:
                    found.append((host, replace(address, host=own, through="")))
            found.append((host, address))
        return found

    # ---- downloads

    async def download(
        self,
        model: str,
        *,
        revision: str = "",
        directory: str = "",
        on_progress: Callable[[str], None] = lambda text: None,
    ) -> HostModels:
        """Download a model from the hub with the download program of this session's host. Return
        the host's copies of the model afterwards. `revision` "" stands for the default one, and
        `directory` "" for the hub's cache. `on_progress` is called with texts. Raises InputError
        for an invalid name, and HostError if there is no such program or it fails."""
        host = self._session.host
        entry, places = self._entry_of_host(host.name), self.search_paths_on_host(host.name)
        programs = [shlex.split(program)[0] for program in entry.engines.values()]
        directories = [program.rpartition("/")[0] for program in programs if "/" in program]
        program = await model_download.find_download_program(host, directories)
        if directory:
            directory = await model_shipment.resolve_absolute_path(host, places, directory)
            places = SearchPlaces(places.env, (*places.paths, directory))
        await model_download.download_model(
            host,
            program,
            model,
            env=dict(entry.env),
            revision=revision,
            directory=directory,
            on_progress=on_progress,
        )
        found = await model_inventory.find_copies(host, places, directory or model)
        return HostModels(host.name, tuple(found))
