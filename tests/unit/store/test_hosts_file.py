"""Tests of hosts.toml: a wrong entry harms only itself, and nothing in the user's file is lost."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.model.errors import InputError, StoreError
from workbench.model.findings import Level
from workbench.model.host_entry import ClusterNode, HostEntry
from workbench.store import paths
from workbench.store.hosts_file import HostsStore
from workbench.store.hosts_schema import check_hosts_document
from workbench.store.text_files import MAX_BYTES

WRITTEN = """\
# the rack
[hosts.spark-01]
ssh = "nvidia@10.0.0.1"  # left
label = "left Spark"
engines = { vllm = "/opt/v/bin/vllm serve" }
env = { HF_HOME = "/data/hf", NCCL_IB_DISABLE = 1 }
run_as = "systemd"
run_options = { scope = "system", property = ["MemoryMax=200G", "Nice=-5"] }
models = ["/data/models", "~/models"]
sudo = false

[hosts.llm]
ssh = "proxmox"
container = "pct:101"

[clusters.sparks]
label = "both"
reserve_gib = 8
nodes = ["spark-01", { host = "spark-02", address = "10.0.0.2", interface = "enp1s0f0np0", rdma = ["rocep1s0f0"] }]
"""


@pytest.fixture
def store(tmp_path: Path) -> HostsStore:
    return HostsStore(tmp_path / "conf" / "hosts.toml")


def write(store: HostsStore, text: str) -> None:
    store.path.parent.mkdir(exist_ok=True)
    store.path.write_text(text)


def test_a_missing_file_counts_as_empty(store: HostsStore) -> None:
    assert (dict(store.content.hosts), dict(store.content.clusters), store.findings) == ({}, {}, ())
    assert store.host("spark-01") is None and HostsStore().path == paths.config_dir() / "hosts.toml"
    with pytest.raises(InputError, match="has no cluster 'sparks'"):
        store.cluster("sparks")


def test_every_field_is_read(store: HostsStore) -> None:
    write(store, WRITTEN)
    assert store.findings == ()
    assert store.host("spark-01") == HostEntry(
        "spark-01",
        "nvidia@10.0.0.1",
        label="left Spark",
        engines={"vllm": "/opt/v/bin/vllm serve"},
        env={"HF_HOME": "/data/hf", "NCCL_IB_DISABLE": "1"},
        run_as="systemd",
        run_options={"scope": "system", "property": "MemoryMax=200G\nNice=-5"},
        models=("/data/models", "~/models"),
        sudo=False,
    )
    assert store.host("llm") == HostEntry("llm", "proxmox", "pct:101")
    cluster = store.cluster("sparks")
    assert (cluster.label, cluster.reserve_gib) == ("both", 8.0)
    assert cluster.nodes == (
        ClusterNode("spark-01"),
        ClusterNode("spark-02", "10.0.0.2", "enp1s0f0np0", ("rocep1s0f0",)),
    )
    with pytest.raises(InputError) as unknown:
        store.cluster("spraks")
    assert unknown.value.next_step == "did you mean sparks?"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ssh = 7", "text is expected"),
        ('ssh = "-oProxyCommand=evil"', "an alias of your ssh configuration"),
        ('ssh = "a b"', "an alias of your ssh configuration"),
        ('container = "vllm"', "KIND:NAME"),
        ('container = "podman:a\\u001bb"', "KIND:NAME"),
        ('container = "podmn:x"', "the kinds are"),
        ("label = 1", "text is expected"),
        ('engines = { vlm = "x" }', "the name of an engine (vllm, sglang"),
        ('engines = { vllm = "\'x" }', "quoted as in a shell"),
        ('env = { "A B" = "x" }', "the name of an environment variable"),
        ('env = { A = "a\\u0007" }', "text without control characters"),
        ("env = { A = true }", "text without control characters"),
        ("env = 3", "a table is expected"),
        ('run_as = "cron"', "one of process, systemd"),
        ('run_options = { scope = "system" }', "'process' has no run option 'scope'"),
        ('run_as = "systemd"\nrun_options = { scop = "system" }', "did you mean scope?"),
        ('run_as = "systemd"\nrun_options = { scope = "planet" }', "expected one of"),
        ('run_options = { "--x" = "1" }', "the name of an option"),
        ('models = "/x"', "a list is expected"),
        ('models = ["x"]', "absolute paths"),
        ('sudo = "no"', "true or false"),
    ],
)
def test_a_wrong_value_makes_its_own_host_unusable(
    store: HostsStore, line: str, expected: str
) -> None:
    write(store, f'{WRITTEN}\n[hosts.other]\n{line}\n[hosts.last]\nssh = "me@last"\n')
    (finding,) = store.findings
    assert (finding.level, finding.line, finding.file) == (
        Level.ERROR,
        21 + len(line.splitlines()),
        str(store.path),
    )
    assert expected in finding.text and finding.field and finding.field.startswith("hosts.other.")
    with pytest.raises(InputError, match="the host other cannot be used") as refused:
        store.host("other")
    assert refused.value.findings == (finding,)
    assert set(store.content.hosts) == {"spark-01", "llm", "last"} and store.cluster("sparks")


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ('"spark-01"', "a list is expected"),
        ("[]", "at least one node"),
        ("[1]", "a list of names of hosts"),
        ('[{ address = "10.0.0.1" }]', "with a host"),
        ('["a b"]', "the name of a host"),
        ('[{ host = "a", interface = "eth0; rm" }]', "a network interface"),
        ('[{ host = "a", rdma = "x" }]', "a list is expected"),
    ],
)
def test_a_wrong_node_makes_its_own_cluster_unusable(
    store: HostsStore, nodes: str, expected: str
) -> None:
    write(store, f"{WRITTEN}\n[clusters.other]\nnodes = {nodes}\n")
    assert expected in store.findings[0].text and store.cluster("sparks")
    with pytest.raises(InputError, match="the cluster other cannot be used"):
        store.cluster("other")


def test_a_cluster_without_nodes_and_an_unknown_field_are_reported(store: HostsStore) -> None:
    write(store, '[clusters.c]\nlabel = "x"\n[hosts.a]\nssh = "a"\ncolour = "red"\n[users.b]\n')
    texts = {finding.text: finding.level for finding in store.findings}
    assert texts == {
        "users: Workbench has no such field and ignores it": Level.WARN,
        "hosts.a.colour: Workbench has no such field and ignores it": Level.WARN,
        "clusters.c: nodes is missing; the entry is not used": Level.ERROR,
    }
    assert store.host("a") is not None


def test_a_host_name_with_dots_needs_quotes(store: HostsStore) -> None:
    write(store, '[hosts.gpu.example]\nssh = "x"\n[hosts."box.example"]\nssh = "x"\n')
    assert [f.line for f in store.findings] == [1] and '[hosts."gpu.example"]' in store.findings[
        0
    ].text
    assert store.host("box.example") is not None


def test_names_that_would_mean_another_machine_are_refused(store: HostsStore) -> None:
    write(store, '[hosts.local]\nssh = "box"\n[hosts."a/b"]\n[hosts."sim:x"]\n')
    assert len(store.findings) == 3 and not store.content.hosts


def test_hosts_that_lead_to_one_another_are_unusable(store: HostsStore) -> None:
    write(
        store,
        '[hosts.a]\nssh = "b"\n[hosts.b]\nssh = "a"\n[hosts.c]\nssh = "c"\n[hosts.d]\nssh = "c"\n',
    )
    assert set(store.content.hosts) == {"c", "d"}
    with pytest.raises(InputError, match="circle"):
        store.host("a")


@pytest.mark.parametrize("data", [b"[hosts", b"\xff\xfe", b"a = " + b"[" * 5000])
def test_a_file_that_is_not_toml_is_named_and_never_changed(store: HostsStore, data: bytes) -> None:
    store.path.parent.mkdir()
    store.path.write_bytes(data)
    found = store.findings[0]
    assert found.code == "hosts.unusable" and not store.content.hosts
    assert str(store.path) not in found.text, "the finding names the file already"
    with pytest.raises(StoreError):  # not the ssh host of that name, which may be another machine
        store.host("spark-01")
    with pytest.raises(StoreError):
        store.add(HostEntry("a", "b"))
    assert store.path.read_bytes() == data


def test_an_added_host_keeps_everything_else_in_the_file(store: HostsStore) -> None:
    write(store, WRITTEN)
    entry = HostEntry(
        "new",
        "me@box",
        "podman:x",
        "text",
        {"vllm": "v"},
        {"A": "1"},
        "systemd",
        {"scope": "user"},
        ("/m",),
        True,
    )
    store.add(entry)
    text = store.path.read_text()
    assert store.host("new") == entry and "# the rack" in text and "# left" in text
    assert HostsStore(store.path).content == store.content and not store.findings


def test_an_entry_is_replaced_only_on_request(store: HostsStore) -> None:
    write(store, WRITTEN)
    with pytest.raises(InputError, match="already has a host spark-01") as refused:
        store.add(HostEntry("spark-01", "x"))
    assert "--replace" in str(refused.value.next_step) and store.path.read_text() == WRITTEN
    store.add(HostEntry("spark-01", "x"), replace=True)
    assert store.host("spark-01") == HostEntry("spark-01", "x") and store.host("llm") is not None
    assert "# the rack" in store.path.read_text()


def test_an_invalid_host_is_not_written(store: HostsStore) -> None:
    for entry in (
        HostEntry("a b"),
        HostEntry(""),
        HostEntry("a", "-x"),
        HostEntry("a", container="x"),
    ):
        with pytest.raises(InputError):
            store.add(entry)
    assert not store.path.exists()


def test_a_changed_file_is_read_again(store: HostsStore) -> None:
    write(store, '[hosts.a]\nssh = "x"\n')
    assert store.host("b") is None
    write(store, '[hosts.b]\nssh = "xy"\n')
    os.utime(store.path, ns=(1, 1))
    assert store.host("b") is not None and store.host("a") is None


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    ["ssh", "container", "label", "engines", "env", "run_options", "models", "sudo", "nodes"]
)


@given(st.dictionaries(st.sampled_from(["hosts", "clusters", "x"]), VALUES, max_size=3))
def test_no_document_is_too_strange(document: dict[str, object]) -> None:
    check_hosts_document(document)


@given(
    st.dictionaries(st.text(max_size=4), st.dictionaries(FIELDS, VALUES, max_size=4), max_size=3)
)
def test_no_entry_is_too_strange(entries: dict[str, object]) -> None:
    found = check_hosts_document({"hosts": entries, "clusters": entries})
    assert set(found.file.hosts) | {n for s, n in found.unusable if s == "hosts"} == set(entries)


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_file_is_named_and_never_read(
    store: HostsStore, make: Callable[[Path], object]
) -> None:
    """A pipe would block, and /dev/zero has no end."""
    store.path.parent.mkdir(parents=True, exist_ok=True)
    make(store.path)
    with pytest.raises(StoreError, match="not a regular file"):
        store.host("a")
    assert [finding.code for finding in store.findings] == ["hosts.unusable"]


def test_a_huge_file_is_not_read(store: HostsStore) -> None:
    write(store, f'[hosts.a]\nlabel = "{"x" * MAX_BYTES}"\n')
    with pytest.raises(StoreError, match="more than 4 MiB"):
        store.host("a")


def test_a_long_way_to_a_machine_ends(store: HostsStore) -> None:
    """Ten thousand hosts, each on the next, would take the check minutes."""
    write(store, "".join(f'[hosts.h{i}]\nssh = "h{i + 1}"\n' for i in range(2000)))
    with pytest.raises(InputError, match="lead to one another"):
        store.host("h0")
    assert store.host("h1999") is not None
    assert store.host("h1990") is not None


@pytest.mark.parametrize("reserve", ["9" * 400, "-" + "9" * 400, "inf", "nan", "-1"])
def test_a_reserve_that_is_no_size_harms_only_its_cluster(store: HostsStore, reserve: str) -> None:
    write(store, f'[hosts.a]\n[clusters.b]\nreserve_gib = {reserve}\nnodes = ["a"]\n')
    assert [finding.field for finding in store.findings] == ["clusters.b.reserve_gib"]
    assert store.host("a") is not None


@pytest.mark.parametrize(
    "text",
    [
        "[clusters.many]\nnodes = ["
        + "".join(f"{{host = 'a', x{n} = 1}}, " for n in range(2_000))
        + "1]\n",
        "".join(f'[hosts."{number} is wrong"]\n' for number in range(2_000)),
        "[hosts.a]\n" + "".join(f"unknown{number} = 1\n" for number in range(2_000)) + "sudo = 1\n",
    ],
)
def test_of_many_problems_the_first_are_told_and_the_others_counted(
    store: HostsStore, text: str
) -> None:
    write(store, text)
    found = store.findings
    assert len(found) == 31 and found[-1].code == "hosts.more"
    assert found[0].level is Level.ERROR and sum(len(f.text) for f in found) < 10_000
    assert found[-1].text.endswith("more problems of the file are not listed")


def test_an_entry_with_many_problems_tells_the_first(store: HostsStore) -> None:
    write(store, "[hosts.a]\nmodels = [" + "1, " * 100_000 + "1]\n")
    assert len(store.findings) == 1
    write(store, "[hosts.a.env]\n" + "".join(f"{number}x = 1\n" for number in range(5_000)))
    with pytest.raises(InputError, match="the host a cannot be used") as caught:
        store.host("a")
    assert len(caught.value.findings) == 31
    write(store, "".join(f'[clusters.c{number}]\nnodes = ["a"]\n' for number in range(500)))
    with pytest.raises(InputError, match="has no cluster 'x'") as unknown:
        store.cluster("x")
    assert str(unknown.value.next_step).endswith("c9 and 490 more")


@pytest.mark.parametrize(
    "name",
    ["\\u001b[31mred", "a\\nb", "[link=file:///etc/passwd]x[/link]", "a" * 300, "\\u202eabc"],
)
def test_hostile_names_are_refused_and_shown_as_plain_short_text(
    store: HostsStore, name: str
) -> None:
    write(
        store,
        f'[hosts."{name}"]\nssh = "a"\n[clusters.c]\nnodes = ["a", "{name}"]\nlabel = "{name}"\n',
    )
    assert dict(store.content.hosts) == {}
    for finding in store.findings:
        assert finding.text.isprintable() and len(finding.text) < 400
    for cluster in store.content.clusters.values():
        assert cluster.label.isprintable() and all(
            node.host.isprintable() for node in cluster.nodes
        )


def test_a_misspelled_name_is_answered_with_the_right_one(store: HostsStore) -> None:
    write(store, '[host.a]\nssh = "x"\n[hosts.b]\nengine = { vllm = "/x" }\n')
    texts = [finding.text for finding in store.findings]
    assert any("host: hosts.toml has no such name here: write hosts" in text for text in texts)
    assert any("hosts.b.engine" in text and "write engines" in text for text in texts)


def test_a_name_with_dots_is_answered_with_quotes(store: HostsStore) -> None:
    write(store, '[hosts.lab.gpu]\nssh = "x"\n')
    assert 'needs quotes: [hosts."lab.gpu"]' in store.findings[0].text
