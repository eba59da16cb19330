"""No key may be shown, and nothing else may be hidden."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench import engines
from workbench.model import secrets
from workbench.model.plan import Command, LaunchPlan
from workbench.model.secrets import (
    MASK,
    is_secret_name,
    mask_argv,
    mask_command,
    mask_data,
    mask_env,
    mask_lines,
    mask_text,
)

SECRET = (
    *(
        "api-key",
        "--api-key",
        "HF_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "admin-api-key",
        "apiKey",
        "SSL_PASSPHRASE",
    ),
    *("AUTH", "PROXY_AUTH", "MY_PASSPHRASE", "CREDENTIALS", "PGPASSWORD", "ssl-keyfile-password"),
    *("OPENAI_API_KEYS", "Authorization"),
)
ORDINARY = (
    *(
        "TOKENIZERS_PARALLELISM",
        "MAX_TOKENS",
        "KEYBOARD",
        "MONKEY",
        "reasoning-start-token",
        "ssl-keyfile",
        "PATH",
    ),
    *(
        "bucket-time-to-first-token",
        "cors-credentials",
        "S3_ACCESS_KEY_ID",
        "tokenizer",
        "VLLM_USE_FASTOKENS",
    ),
)


@pytest.mark.parametrize("name", SECRET)
def test_secret_names(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_names(name: str) -> None:
    assert not is_secret_name(name)
    assert mask_env({name: "some-value"}) == {name: "some-value"}


VALUES = st.text(
    st.characters(categories=("Lu", "Ll", "Nd"), max_codepoint=127), min_size=6, max_size=20
)


@given(
    st.sampled_from([n for n in SECRET if not n.startswith("-")]),
    VALUES.map(lambda v: f"Zq{v}"),
    st.data(),
)
def test_a_secret_is_in_no_form_of_a_plan_that_is_shown(
    name: str, value: str, data: st.DataObject
) -> None:
    """As a flag, as `--flag=value`, as a variable, inside JSON, in a container's `-e`, in a URL."""
    forms: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
        "flag": ((f"--{name}", value), {}),
        "equals": ((f"--{name}={value}",), {}),
        "env": ((), {name: value}),
        "json": ((json.dumps({"inner": {name: [value, "x"]}}),), {}),
        "container": (("docker", "-e", f"{name}={value}"), {}),
        "url": ((f"http://me:{value}@box:1/",), {"HTTP_PROXY": f"http://me:{value}@proxy:3128"}),
    }
    argv, env = forms[data.draw(st.sampled_from(sorted(forms)))]
    command = Command(
        ("vllm", *argv),
        env,
        {"config.yml": f"{name}: {value}"} if not env and len(argv) == 2 else {},
    )
    assert value not in repr(mask_command(command))
    assert value not in repr(mask_data({"argv": list(command.argv), "env": dict(command.env)}))
    assert mask_command(mask_command(command)) == mask_command(command)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "SSL_PASSPHRASE=geheim77",
            "--passphrase geheim77",
            "--hf-token=geheim77",
            "password: geheim77",
        ),
        *(
            "MY_SECRET_KEY='geheim77'",
            "{'admin_api_key': 'geheim77'}",
            "postgres://u:geheim77@db/x",
        ),
    ],
)
def test_a_line_of_text_shows_none(text: str) -> None:
    assert "geheim77" not in mask_text(text)


def test_a_crash_file_quotes_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from workbench.store.crash_files import store_traceback_file

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("MY_API_KEY", "environment-secret\n")
    mask_command(Command(("vllm", "--api-key", "plan-secret")))
    try:
        raise ValueError("header b'Bearer environment-secret' or plan-secret\x1b[2J")
    except ValueError as error:
        kept = store_traceback_file(error)
    assert kept is not None
    text = Path(kept).read_text()
    assert "ValueError" in text and "\x1b" not in text
    assert not any(s in text for s in ("environment-secret", "plan-secret"))


@pytest.mark.parametrize("engine", engines.engine_names())
def test_no_ordinary_flag_counts_as_secret(engine: str) -> None:
    secret = {n for n in engines.get_engine(engine).catalog().flags if is_secret_name(n)}
    assert secret <= {
        "api-key",
        "admin-api-key",
        "hf-token",
        "ssl-keyfile-password",
        "seqlog-api-key",
    }
    assert engine == "tabbyapi" or "api-key" in secret


def test_argv_masks_every_value_under_a_secret_flag() -> None:
    argv = [
        "vllm",
        "serve",
        "m",
        "--api-key",
        "x",
        "second-key",
        "--port",
        "8000",
        "--hf-token=abc",
    ]
    assert mask_argv(argv) == (
        "vllm",
        "serve",
        "m",
        "--api-key",
        MASK,
        MASK,
        "--port",
        "8000",
        f"--hf-token={MASK}",
    )


def test_command_masks_the_value_wherever_it_occurs() -> None:
    command = Command(
        ("sglang", "serve", "--api-key", "s3cret", "--alias", "with-s3cret-inside"),
        {"HF_TOKEN": "tok"},
    )
    masked = mask_command(command)
    assert "s3cret" not in masked.shell_line and "tok" not in masked.env.values()
    assert masked.argv[-1] == f"with-{MASK}-inside"


def test_env_and_text() -> None:
    env = {"PATH": "/bin", "EMPTY_KEY": ""}
    assert mask_env({"HF_TOKEN": "abc", **env}) == {"HF_TOKEN": MASK, **env}
    assert (
        mask_text("vllm serve m --api-key hunter2 --port 1")
        == f"vllm serve m --api-key {MASK} --port 1"
    )
    assert (
        mask_text("http_proxy=http://me:pw@proxy:3128/")
        == f"http_proxy=http://me:{MASK}@proxy:3128/"
    )
    assert mask_text("listening on http://127.0.0.1:8000/v1") == (
        "listening on http://127.0.0.1:8000/v1"
    )
    assert mask_text("max_num_batched_tokens=8192") == "max_num_batched_tokens=8192"


def test_plan_with_a_key_shows_none() -> None:
    engine, plan = engines.get_engine("vllm"), LaunchPlan("vllm", "m")
    plan = engines.apply_assignments(
        plan, engine.catalog(), ["api-key=a b"], envs=["VLLM_API_KEY=topsecret"]
    )
    shown = mask_command(engine.command(plan)).shell_line
    assert "topsecret" not in shown
    assert f"--api-key '{MASK}' '{MASK}'" in shown


@pytest.mark.parametrize(
    "text",
    ["Authorization: Bearer k1", "Authorization: Basic k1", '{"Authorization": "Bearer k1"}'],
)
def test_a_short_key_in_a_header_is_masked(text: str) -> None:
    assert "k1" not in mask_text(text) and "k1" not in repr(mask_argv(["curl", "-H", text]))


@pytest.mark.parametrize(
    "text",
    [
        *(
            "http://h/v1?api_key=K3y-9",
            "'https://h?a=1&access_token=K3y-9&b=2' is no URL",
            "http://K3y-9@h:8000/v1",
        ),
        *(
            "http://h/?X-Amz-Signature=K3y-9#x",
            "GET http://me:K3y-9@h/?key=K3y-9",
            "ws://h/?sig=K3y-9",
        ),
    ],
)
def test_a_url_shows_no_secret_in_its_query_or_before_its_host(text: str) -> None:
    from workbench.model.errors import BenchError

    error = BenchError(text, command=f"bench --url {text}", next_step=f"try {text}")
    assert "K3y-9" not in mask_text(text) + str(error) + json.dumps(error.as_json())


@pytest.mark.parametrize(
    ("argv", "hidden"),
    [
        *(
            (("tool", "-k", "abcd1234efgh5678"), True),
            (("tool", "token=ab"), True),
            (("env", "AUTH=ab", "x"), True),
        ),
        *(
            (("curl", "-k", "https://box:8000/v1/models"), False),
            (("curl", "-k", "-s", "http://h/"), False),
        ),
        *(
            (("pytest", "-k", "test_one and not slow"), False),
            (("curl", "-k", "host.example.org1:8000/x"), False),
        ),
        *(
            (("sort", "-k", "2"), False),
            (("ssh", "ssh://user@host/"), False),
            (("x", "http://h/?page=2&n=1"), False),
        ),
    ],
)
def test_a_key_in_a_command_is_masked_and_nothing_else(argv: tuple[str, ...], hidden: bool) -> None:
    """curl's -k (--insecure) has no value, so the word after it is masked only if it looks like a
    key."""
    assert (mask_argv(argv) != argv) is hidden
    if argv[1] == "-k" and not hidden:
        assert mask_text(" ".join(argv)) == " ".join(argv)
    if argv[:2] == ("tool", "-k"):
        assert argv[2] not in mask_text(" ".join(argv))


@given(
    st.lists(
        st.sampled_from(
            ["token", "tokens", "s", "sig", "k-", "key", "=", "?", " ", "hf_", "a1" * 9, "-"]
        )
    )
)
def test_the_quick_check_of_a_line_hides_no_secret(parts: list[str]) -> None:
    line = f"GET http://box/?{''.join(parts)}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secrets, "_HINTS", ("",))  # every line is searched
        whole = mask_text(line)
    assert mask_text(line) == whole


KEY = "Ab1Cd2Ef3Gh4Ij5Kl6Mn7Op8Qr9St0Uv1Wx"


@pytest.mark.parametrize(
    "text",
    [
        f"pulled with nvapi-{KEY} from the registry",
        f"clone of https://box/x by glpat-{KEY}",
        f"posted by xoxb-123456-{KEY}",
        f"gsk_{KEY}",
        f"?? AIza{KEY}",
        f"github_pat_{KEY}",
        f"Cookie: session={KEY}; theme=dark",
    ],
)
def test_keys_of_other_services_are_recognized_by_their_shape(text: str) -> None:
    assert KEY not in mask_text(text) and MASK in mask_text(text)
    assert mask_lines([text, "x"]) == [mask_text(text), "x"]


PARTS = [
    "token",
    "s",
    "1",
    "23",
    "Bearer ",
    "abcdefgh12",
    "key",
    "=",
    "?",
    " ",
    "hf_",
    "a1" * 9,
    "-",
    "Σ",
    "mine",
    "x",
]


@given(st.lists(st.lists(st.sampled_from(PARTS), max_size=6).map("".join), max_size=12))
def test_lines_are_masked_the_same_together_and_one_by_one(lines: list[str]) -> None:
    for known in ((), ("mine",)):
        assert mask_lines(lines, known) == [mask_text(line, known) for line in lines]


def test_lines_about_throughput_are_not_searched_for_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The search takes 30 us a line: 6 % of a core for a log of 2,000 lines a second."""
    monkeypatch.setattr(secrets, "mask_urls", lambda text: pytest.fail(text))
    line = (
        "INFO 11-22 12:00:00 [loggers.py:1] Avg prompt throughput: 9.1 tokens/s, Running: 8 "
        "reqs, max_num_tokens 12"
    )
    assert mask_text(line) == line


@pytest.mark.parametrize(
    "part",
    ["A", "xpassword", "--a", "token=", "eyJ-", "A_", "sk-", "?a", "://a:", "-k ", "api_key"],
)
@pytest.mark.timeout(60)  # a search that goes back takes minutes
def test_a_long_line_without_a_secret_is_searched_in_one_pass(part: str) -> None:
    """A line of a log may have 64 KiB, and clients choose what an engine logs."""
    line = "key " + part * (64 * 1024 // len(part))
    assert len(mask_text(line)) <= len(line)


def test_texts_below_a_secret_name_are_masked_at_any_depth() -> None:
    data = {"api_key": {"value": "abcd"}, "token": ["a", {"x": ["secretword"]}], "x": {"y": "open"}}
    masked = mask_data(data)
    assert "abcd" not in repr(masked) and "secretword" not in repr(masked)
    assert masked["x"] == {"y": "open"} and mask_data(masked) == masked
