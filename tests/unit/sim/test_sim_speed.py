"""The speed model agrees with public measurements, and each setting has its real effect."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sim_speed import single_stream_tok_s

from workbench.sim import model_sizes, physics, profiles, step_time
from workbench.sim.step_time import ModelReplica

MISTRAL = "mistralai/Mistral-Large-Instruct-2411-AWQ"
QWEN_VL = "Qwen/Qwen3-VL-2B-Instruct"


def serving(
    profile: str, model: str, *, tp: int = 1, quantization: str = "", **more
) -> ModelReplica:
    host = profiles.get_profile(profile)
    described = model_sizes.describe_model(model, quantization=quantization)
    return ModelReplica(host.gpu, host.interconnect, described, tp, **more)


def rate(
    one: ModelReplica, profile: str, *, requests: int = 1, dp: int = 1, watts: float | None = None
) -> tuple[float, float]:
    """Return (tokens per second of all requests, watts of one GPU) at settled clocks and power."""
    host, per = profiles.get_profile(profile), requests // dp
    sm, memory = float(one.gpu.sm_compute_mhz), float(one.gpu.memory_compute_mhz)
    for _ in range(4):
        step = step_time.compute_engine_step(
            one, sm_mhz=sm, memory_mhz=memory, sequences=per, context_tokens=256 * per
        )
        now = physics.operating_point(host, physics.GpuSetting(limit_w=watts), step.activity, 60.0)
        sm, memory = now.sm_mhz, now.memory_mhz
    return per * dp / step.total_s, now.power_w


def test_123b_awq_on_one_workstation_card():
    one = serving("rtx-pro-6000", MISTRAL)
    got = single_stream_tok_s(one)
    assert 22 <= got <= 24
    nominal = one.gpu.bandwidth_gbs * 1e9 / one.model.bytes_per_token
    assert 0.79 <= got / nominal <= 0.89


def test_70b_on_sparks():
    two = serving("gb10-x2", "meta-llama/Llama-3.3-70B-Instruct", tp=2)
    assert single_stream_tok_s(two) == pytest.approx(3.17, rel=0.03)
    one = serving("gb10", "nvidia/Llama-3.3-70B-Instruct-NVFP4")
    assert single_stream_tok_s(one) == pytest.approx(4.1, rel=0.05)


def test_7b_on_a_5060ti_and_fp8_is_slower_than_awq():
    awq, fp8 = (
        single_stream_tok_s(serving("rtx-5060ti-x2", "Qwen/Qwen2.5-7B-Instruct", quantization=q))
        for q in ("awq", "fp8")
    )
    assert awq == pytest.approx(81, rel=0.05) and fp8 < 0.7 * awq


def test_power_limit_of_400_w_is_nearly_free_for_one_stream():
    one = serving("rtx-pro-6000", MISTRAL)
    full, full_w = rate(one, "rtx-pro-6000")
    capped, capped_w = rate(one, "rtx-pro-6000", watts=400)
    assert 0.003 < 1 - capped / full < 0.02
    assert capped / capped_w > 1.2 * full / full_w
    low, _ = rate(one, "rtx-pro-6000", watts=300)
    assert 0.08 < 1 - low / full < 0.18


def test_power_limit_costs_a_batch_more_than_one_stream():
    one = serving("rtx-pro-6000", MISTRAL)

    def loss(requests: int) -> float:
        full, capped = (
            rate(one, "rtx-pro-6000", requests=requests, watts=w)[0] for w in (600, 350)
        )
        return 1 - capped / full

    assert loss(32) > loss(1) + 0.05


def test_replicas_and_graphs_beat_tensor_parallelism_for_a_small_model():
    def total(tp: int, dp: int, eager: bool, requests: int) -> float:
        return rate(
            serving("four-pcie", QWEN_VL, tp=tp, eager=eager), "four-pcie", requests=requests, dp=dp
        )[0]

    assert total(4, 1, True, 8) == pytest.approx(412, rel=0.08)  # what such a server was seen to do
    for requests in (8, 80):
        eager_tp4, tp2_dp2, dp4 = (
            total(*how, requests) for how in ((4, 1, True), (2, 2, False), (1, 4, False))
        )
        assert eager_tp4 < tp2_dp2 < dp4
        assert dp4 > 4 * eager_tp4
        assert total(4, 1, False, requests) > 1.5 * eager_tp4


def test_two_peers_use_the_engines_own_all_reduce_and_four_cannot():
    two, four = (serving("four-pcie", QWEN_VL, tp=tp) for tp in (2, 4))
    assert two.custom_all_reduce_us is not None and four.custom_all_reduce_us is None
    without = serving("four-pcie", QWEN_VL, tp=2, custom_all_reduce=False)
    assert single_stream_tok_s(without) < single_stream_tok_s(two)
    assert serving("rtx-5060ti-x2", QWEN_VL, tp=2).custom_all_reduce_us is None


def test_memory_clock_bounds_decode():
    one = serving("rtx-pro-6000", MISTRAL)
    slow, fast = (
        step_time.compute_engine_step(
            one, sm_mhz=2790, memory_mhz=mhz, sequences=1, context_tokens=256
        ).total_s
        for mhz in (13365, 14001)
    )
    assert 1.03 < slow / fast < 1.048


@given(
    st.integers(1, 256),
    st.integers(0, 200_000),
    st.integers(0, 8192),
    st.sampled_from([1, 2, 4]),
    st.booleans(),
    st.floats(200, 1410),
)
def test_more_work_never_takes_less_time(sequences, context, prefill, tp, eager, sm):
    one = serving("four-pcie", QWEN_VL, tp=tp, eager=eager)

    def seconds(n: int, c: int, p: int, mhz: float = sm) -> float:
        return step_time.compute_engine_step(
            one, sm_mhz=mhz, memory_mhz=1215, sequences=n, context_tokens=c, prefill_tokens=p
        ).total_s

    base = seconds(sequences, context, prefill)
    assert base > 0
    assert seconds(sequences + 1, context, prefill) >= base
    assert seconds(sequences, context + 1000, prefill) >= base
    assert seconds(sequences, context, prefill + 100) >= base
    assert seconds(sequences, context, prefill, sm * 0.9) >= base


@pytest.mark.parametrize(
    ("name", "flags", "gb_per_token"),
    [
        (MISTRAL, {}, 64.09),
        ("/srv/models/Mistral-Large-Instruct-2411-AWQ", {}, 64.09),
        ("meta-llama/Llama-3.3-70B-Instruct", {}, 139.0),
        ("meta-llama/Llama-3.3-70B-Instruct", {"quantization": "fp8"}, 70.55),
        ("nvidia/Llama-3.3-70B-Instruct-NVFP4", {}, 40.61),
        ("meta-llama/Llama-3.2-3B-Instruct", {"quantization": "fp8"}, 3.61),
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", {}, 4.48),
        ("Qwen/Qwen2.5-7B-Instruct", {"quantization": "fp8"}, 7.62),
        (QWEN_VL, {}, 3.44),
        ("openai/gpt-oss-120b", {}, 4.97),
    ],
)
def test_bytes_of_the_presets_models(name, flags, gb_per_token):
    model = model_sizes.describe_model(name, **flags)
    assert model.bytes_per_token == pytest.approx(gb_per_token * 1e9) and not model.guessed
    assert model.weight_bytes >= model.bytes_per_token * 0.99


def test_unknown_models_are_sized_by_their_names():
    dense = model_sizes.describe_model("acme/Thing-13B-chat")
    assert dense.guessed and dense.bytes_per_token == pytest.approx(26e9) and dense.layers == 40
    mixture = model_sizes.describe_model("acme/Thing-30B-A3B-Instruct-FP8")
    assert mixture.bytes_per_token == pytest.approx(3e9) and mixture.weight_bytes == pytest.approx(
        30e9
    )
    quant = model_sizes.describe_model("acme/Thing-7B-5.0bpw-exl3")
    assert quant.bytes_per_token == pytest.approx(7e9 * 5.1 / 8)
    assert model_sizes.describe_model("acme/Thing").parameters == 1e9
    assert model_sizes.describe_model("acme/Thing-7B", kv_fp8=True).kv_bytes_per_token * 2 == (
        model_sizes.describe_model("acme/Thing-7B").kv_bytes_per_token
    )


def test_a_local_checkpoint_is_as_big_as_its_files(tmp_path):
    (tmp_path / "model-00001.safetensors").write_bytes(b"\0" * 4096)
    (tmp_path / "model-00002.safetensors").write_bytes(b"\0" * 1024)
    assert model_sizes.describe_model(str(tmp_path)).weight_bytes == 5120


def test_a_mixture_reads_more_experts_the_larger_the_batch():
    one = serving("gb10", "openai/gpt-oss-120b")

    def memory(n: int) -> float:
        return step_time.compute_engine_step(
            one, sm_mhz=2405, memory_mhz=8533, sequences=n, context_tokens=0
        ).memory_s

    assert memory(8) > 3 * memory(1)
    assert memory(512) == pytest.approx(
        one.model.weight_bytes / (273e9 * one.gpu.efficiency), rel=0.01
    )
