"""The packaged catalogs are consistent, load fast, find flags by any spelling, and support searches
as users type."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench import engines
from workbench.engines import catalog as catalogs
from workbench.model.errors import InputError
from workbench.model.flags import FlagKind

VERSIONS = [(e, v) for e in engines.engine_names() for v in catalogs.list_catalog_versions(e)]
COUNTS = {"vllm": 176, "sglang": 210, "tabbyapi": 73, "llamacpp": 251}


@pytest.mark.parametrize(("name", "version"), VERSIONS)
def test_every_catalog_is_complete_and_consistent(name: str, version: str) -> None:
    catalog = engines.get_engine(name).catalog(version)
    assert (catalog.engine, catalog.version) == (name, version)
    assert len(catalog.flags) >= COUNTS[name]
    for flag_name, spec in catalog.flags.items():
        assert spec.name == flag_name and not flag_name.startswith("-")
        assert spec.negation != f"--{flag_name}"
        if spec.default is not None:
            assert engines.check_flag_value(spec, spec.default) is None, flag_name
        if spec.minimum is not None and spec.maximum is not None:
            assert spec.minimum < spec.maximum
        for alias in spec.aliases:
            assert (
                engines.look_up_flag(catalog, alias).name == flag_name
                or alias.lstrip("-") in catalog.flags
            ), alias


def test_every_engine_has_what_a_plan_needs() -> None:
    for name in engines.engine_names():
        flags = engines.get_engine(name).catalog().flags
        assert flags["host"].kind == FlagKind.STR
        assert (flags["port"].minimum, flags["port"].maximum) == (1, 65535)
        assert all(f in flags for f in engines.get_engine(name).model_flags)


def test_unknown_engine_names_the_known_ones() -> None:
    with pytest.raises(InputError, match="ollama") as error:
        engines.get_engine("ollama")
    assert "llamacpp" in str(error.value)


@pytest.mark.parametrize(("name", "version"), VERSIONS)
def test_loading_reads_one_catalog_and_the_texts_of_its_engine(
    name: str, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A screen loads a catalog before its first frame."""
    read: list[str] = []
    read_text = Path.read_text

    def counted(path: Path, *args: str) -> str:
        read.append(path.name)
        return read_text(path, *args)

    monkeypatch.setattr(Path, "read_text", counted)
    catalogs.load_catalog.cache_clear()
    catalogs._load_flag_help_sentences.cache_clear()
    catalogs.load_catalog(name, version)
    assert sorted(read) == sorted([f"{name}-{version}.json", "help.json"])
    catalogs.load_catalog(name, version)
    assert len(read) == 2, "once in a process"


@pytest.mark.parametrize(
    ("wanted", "used"),
    [
        ("0.33.0", "0.33.0"),
        ("0.32.1+cpu", "0.32.0"),
        ("0.10.2", "0.10.2"),
        ("0.11.1", "0.11.0"),
        ("0.13", "0.11.0"),
        ("0.31", "0.32.0"),
        ("0.40", "0.33.0"),
        (None, "0.33.0"),
        ("?", "0.33.0"),
    ],
)
def test_nearest_catalog(wanted: str | None, used: str) -> None:
    assert engines.get_engine("vllm").catalog(wanted).version == used


@pytest.mark.parametrize(
    ("version", "wanted", "inside"),
    [
        ("0.33.0", ">=0.14,<0.34", True),
        ("0.34.0", ">=0.14,<0.34", False),
        ("0.13.9", ">=0.14", False),
        ("0.14", "==0.14.0", True),
        ("0.14.2", "==0.14.*", True),
        ("0.15.0", "==0.14.*", False),
        ("0.14.5", "~=0.14.2", True),
        ("0.15.0", "~=0.14.2", False),
        ("0.14.0", "!=0.14", False),
        ("b11434", ">=b11000", True),
        ("b10999", ">=b11000", False),
        ("0.32.0+cpu", "<=0.32", True),
        ("e632af4", ">=1", True),
        ("0.1", None, True),
    ],
)
def test_version_ranges(version: str, wanted: str | None, inside: bool) -> None:
    assert engines.version_satisfies(version, wanted) is inside


def test_patch_releases_share_flags_only_in_vllm() -> None:
    vllm, sglang, tabbyapi = map(engines.get_engine, ("vllm", "sglang", "tabbyapi"))
    assert vllm.is_same_release("0.33.2", "0.33.0") and not vllm.is_same_release("0.32.0", "0.33.0")
    assert sglang.is_same_release("0.5.23.post1", "0.5.23") and not sglang.is_same_release(
        "0.5.15", "0.5.23"
    )
    assert not vllm.is_same_release(None, "0.33.0") and not tabbyapi.is_same_release("e632af4", "x")


def test_flags_are_found_by_every_spelling() -> None:
    new, old = (
        engines.get_engine("vllm").catalog("0.33.0"),
        engines.get_engine("vllm").catalog("0.32.0"),
    )
    for spelling in ("tensor-parallel-size", "--tensor_parallel_size", "-tp", "tp"):
        assert engines.canonical_flag_name(new, spelling) == "tensor-parallel-size"
    assert engines.look_up_flag(new, "no-enforce-eager")[::2] == ("enforce-eager", True)
    assert engines.look_up_flag(new, "disable-prefix-caching")[::2] == (
        "enable-prefix-caching",
        True,
    )
    assert engines.look_up_flag(new, "no-enable-prefix-caching")[::2] == (
        "enable-prefix-caching",
        True,
    )
    assert engines.look_up_flag(old, "disable-prefix-caching").spec is None
    # refused by 0.32, taken again by 0.33
    assert engines.look_up_flag(old, "disable-log-requests").spec is None
    assert engines.look_up_flag(new, "disable-log-requests")[::2] == ("enable-log-requests", True)
    assert engines.canonical_flag_name(new, "device-memory-utilization") == "gpu-memory-utilization"


def test_sglang_accepts_unambiguous_prefixes() -> None:
    catalog = engines.get_engine("sglang").catalog()
    assert engines.canonical_flag_name(catalog, "--tp") == "tensor-parallel-size"
    assert engines.canonical_flag_name(catalog, "ep") == "expert-parallel-size"
    for ambiguous in ("pp", "cuda-graph-max-bs", "cuda-graph-bs"):
        assert engines.look_up_flag(catalog, ambiguous).spec is None


def test_llamacpp_aliases_keep_their_case() -> None:
    catalog = engines.get_engine("llamacpp").catalog()
    assert engines.canonical_flag_name(catalog, "-c") == "ctx-size"
    assert engines.canonical_flag_name(catalog, "-C") == "cpu-mask"
    assert engines.canonical_flag_name(catalog, "ngl") == "n-gpu-layers"
    assert catalog.env["LLAMA_ARG_CTX_SIZE"].type == "int"


@pytest.mark.parametrize(
    ("engine", "typed", "first"),
    [
        ("vllm", "mns", "max-num-seqs"),
        ("vllm", "tp", "tensor-parallel-size"),
        ("vllm", "dp", "data-parallel-size"),
        ("vllm", "--max_num_seqs", "max-num-seqs"),
        ("vllm", "max seqs", "max-num-seqs"),
        ("vllm", "gpu mem", "gpu-memory-utilization"),
        ("vllm", "kv dtype", "kv-cache-dtype"),
        ("vllm", "eager", "enforce-eager"),
        ("vllm", "mml", "max-model-len"),
        ("vllm", "max-nun-seqs", "max-num-seqs"),
        ("sglang", "tp", "tensor-parallel-size"),
        ("sglang", "mfs", "mem-fraction-static"),
        ("tabbyapi", "cache m", "cache-mode"),
        ("llamacpp", "ngl", "n-gpu-layers"),
        ("llamacpp", "ctx", "ctx-size"),
    ],
)
def test_search_finds_the_intended_flag_first(engine: str, typed: str, first: str) -> None:
    assert engines.search_flags(engines.get_engine(engine).catalog(), typed)[0].name == first


def test_search_lists_all_flags_without_text_and_none_for_nonsense() -> None:
    catalog = engines.get_engine("vllm").catalog()
    assert [s.name for s in engines.search_flags(catalog, "  ")] == list(catalog.flags)
    assert engines.search_flags(catalog, "zzzzqqqq") == []
    assert engines.search_variables(catalog, "log stats")[0].name == "VLLM_LOG_STATS_INTERVAL"


def test_nearest_name() -> None:
    catalog = engines.get_engine("vllm").catalog()
    assert engines.most_similar_flag_name(catalog, "max-num-seq") == "max-num-seqs"
    assert engines.most_similar_flag_name(catalog, "kv-dtype") == "kv-cache-dtype"
    assert engines.most_similar_flag_name(catalog, "qwertzuiop") is None


def test_thousands_of_digits_are_not_a_version() -> None:
    assert catalogs.parse_version_numbers("9" * 6000) == () and catalogs.parse_version_numbers(
        "1." + "9" * 6000
    ) == (1,)
