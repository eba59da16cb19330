"""The scripts for model files with dash, bash and busybox: the same answers everywhere."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

from support.model_cache import COMMIT, in_directory, in_hub, model_files
from support.userland import UserlandHost

from workbench.server import model_inventory, model_shipment, model_transfer
from workbench.server.model_inventory import SearchPlaces
from workbench.session.hosts.check import _LOOK_SCRIPT

FILES = model_files()


def test_copies_sizes_and_hashes(userland: UserlandHost, tmp_path: Path) -> None:
    hub = tmp_path / "a hub"
    in_hub(hub)
    in_directory(tmp_path / "models" / "x $(y) ünï")
    places = SearchPlaces({"HF_HUB_CACHE": str(hub)}, (str(tmp_path / "models"),))

    async def scenario() -> None:
        assert len(await model_inventory.find_copies(userland, places)) == 2
        for name in ("org/tiny", "x $(y) ünï"):
            (copy,) = await model_inventory.find_copies(userland, places, name)
            assert (
                copy.is_complete and copy.digest_without_weights and copy.expected_bytes == 600_000
            )
            whole = await model_inventory.add_full_file_sizes(userland, copy)
            assert [f.whole_bytes for f in whole.files if f.whole_bytes] == [300_078, 300_078]
            for _ in range(2):  # computed, then from the file of hashes
                hashed = await model_inventory.add_hashes(userland, whole)
                expected = {name: hashlib.sha256(data).hexdigest() for name, data in FILES.items()}
                assert {
                    file.name: file.sha256 for file in hashed.files
                } == expected and hashed.is_complete

    asyncio.run(scenario())


def test_a_shipment_goes_on_where_it_ended(userland: UserlandHost, tmp_path: Path) -> None:
    in_hub(tmp_path / "hub")
    target = tmp_path / "other hub"
    places = SearchPlaces({"HF_HUB_CACHE": str(tmp_path / "hub")})

    async def scenario() -> None:
        (copy,) = await model_inventory.find_copies(userland, places, "org/tiny")
        shipment = model_shipment.plan_shipment(copy, str(target))
        shard = max(shipment.sizes, key=lambda name: (shipment.sizes[name], name))
        staged = Path(shipment.staging_path) / shard
        staged.parent.mkdir(parents=True)
        staged.write_bytes((Path(shipment.source) / shard).read_bytes()[:1234])
        rest = await model_shipment.find_remaining_files(
            userland, userland, shipment, may_replace=False
        )
        assert rest.staged == {shard: 1234} and len(rest.names) == len(FILES)
        seen: list[int] = []
        await model_transfer.send_through_this_machine(
            userland, userland, shipment, rest, lambda done, text: seen.append(done)
        )
        await model_shipment.put_files_in_place(userland, shipment, rest.names, may_replace=False)
        assert (
            seen[-1] == sum(map(len, FILES.values())) and not Path(shipment.staging_path).exists()
        )
        rest = await model_shipment.find_remaining_files(
            userland, userland, shipment, may_replace=False
        )
        assert rest.names == () and len(rest.present) == len(FILES)

    asyncio.run(scenario())
    snapshot = target / "models--org--tiny" / "snapshots" / COMMIT
    assert {
        str(f.relative_to(snapshot)): f.read_bytes() for f in snapshot.rglob("*") if f.is_file()
    } == FILES


def test_the_look_at_a_host(userland: UserlandHost, tmp_path: Path) -> None:
    from workbench.hosts.shell_scripts import shell_argv

    argv = shell_argv(_LOOK_SCRIPT, str(tmp_path), "sh", "", str(tmp_path), "/no/such place")
    done = asyncio.run(userland.run(argv))
    said = dict(line.partition("=")[::2] for line in done.out.splitlines())
    assert said["written"] == "yes" and said["program"].endswith("sh") and int(said["free_kib"]) > 0
    assert (said["there"], said["absent"]) == (str(tmp_path), "/no/such place")
    assert said["now"].partition(".")[0].isdecimal() and not list(tmp_path.glob("check.*"))
