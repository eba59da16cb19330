"""/metrics of the simulated engines, under the names of vLLM 0.33, SGLang 0.5.23 and llama.cpp b11434."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence

from workbench.sim.launch_options import Launch
from workbench.sim.scheduler import Replica

BUCKETS = {
    "ttft_s": (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160),
    "itl_s": (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80),
    "tpot_s": (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80),
    "e2e_s": (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960),
    "queue_s": (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960),
}
VLLM_HISTOGRAMS = {
    "ttft_s": "vllm:time_to_first_token_seconds",
    "itl_s": "vllm:inter_token_latency_seconds",
    "tpot_s": "vllm:request_time_per_output_token_seconds",
    "e2e_s": "vllm:e2e_request_latency_seconds",
    "queue_s": "vllm:request_queue_time_seconds",
}
SGLANG_HISTOGRAMS = {
    "ttft_s": "sglang:time_to_first_token_seconds",
    "itl_s": "sglang:inter_token_latency_seconds",
    "e2e_s": "sglang:e2e_request_latency_seconds",
    "queue_s": "sglang:queue_time_seconds",
}


class Histogram:
    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, values: Iterable[float]) -> None:
        for value in values:
            self.counts[bisect_left(self.bounds, value)] += 1
            self.total += value

    def lines(self, name: str, labels: str) -> list[str]:
        joined = f"{labels}," if labels else ""
        out, running = [f"# TYPE {name} histogram"], 0
        for bound, count in zip([*map(float, self.bounds), "+Inf"], self.counts):  # noqa: B905 (Python 3.9)
            running += count
            out.append(f'{name}_bucket{{{joined}le="{bound}"}} {float(running)}')
        out.append(f"{name}_count{{{labels}}} {float(running)}")
        out.append(f"{name}_sum{{{labels}}} {self.total}")
        return out


class Metrics:
    """Gathers from all replicas; `text` is the exposition."""

    def __init__(self, launch: Launch, replicas: Sequence[Replica], kv_tokens: int) -> None:
        self.launch = launch
        self.replicas = replicas
        self.kv_tokens = kv_tokens
        self.histograms = [{name: Histogram(bounds) for name, bounds in BUCKETS.items()} for _ in replicas]
        self._last = (time.monotonic(), 0)
        self.throughput = 0.0

    def collect(self) -> None:
        """Take over the replicas' observations; called now and then so that their lists stay short."""
        for replica, histograms in zip(self.replicas, self.histograms):  # noqa: B905
            for name, values in replica.counters.drain().items():
                histograms[name].add(values)
        now, total = time.monotonic(), sum(r.counters.generated_tokens for r in self.replicas)
        if now - self._last[0] >= 1.0:
            self.throughput = (total - self._last[1]) / (now - self._last[0])
            self._last = (now, total)

    def text(self) -> bytes:
        self.collect()
        build: dict[str, Callable[[], list[str]]] = {
            "vllm": self._vllm,
            "sglang": self._sglang,
            "llamacpp": self._llamacpp,
        }
        return ("\n".join(build[self.launch.engine]()) + "\n").encode()

    def _vllm(self) -> list[str]:
        out = []
        name = self.launch.served[0]
        for i, (replica, histograms) in enumerate(zip(self.replicas, self.histograms)):  # noqa: B905
            labels = f'engine="{i}",model_name="{name}"'
            counters = replica.counters
            gauges = {
                "vllm:num_requests_running": len(replica.running),
                "vllm:num_requests_waiting": len(replica.waiting),
                "vllm:kv_cache_usage_perc": replica.used_tokens / self.kv_tokens,
            }
            totals = {
                "vllm:prefix_cache_queries_total": counters.prompt_tokens,
                "vllm:prefix_cache_hits_total": counters.cached_tokens,
                "vllm:num_preemptions_total": 0,
                "vllm:prompt_tokens_total": counters.prompt_tokens,
                "vllm:generation_tokens_total": counters.generated_tokens,
            }
            out += _metrics(gauges, "gauge", labels) + _metrics(totals, "counter", labels)
            out += ["# TYPE vllm:request_success_total counter"]
            out += [f'vllm:request_success_total{{{labels},finished_reason="length"}} {float(counters.finished)}']
            for key, metric in VLLM_HISTOGRAMS.items():
                out += histograms[key].lines(metric, labels)
            cache = f'block_size="16",num_gpu_blocks="{self.kv_tokens // 16}",kv_cache_size_tokens="{self.kv_tokens}"'
            share = self.launch.memory_share
            out += [f'vllm:cache_config_info{{{cache},engine="{i}",gpu_memory_utilization="{share}"}} 1.0']
        return out

    def _sglang(self) -> list[str]:
        out = []
        for i, (replica, histograms) in enumerate(zip(self.replicas, self.histograms)):  # noqa: B905
            labels = f'engine_type="unified",model_name="{self.launch.served[0]}",moe_ep_rank="0",pp_rank="0"'
            labels += f',tp_rank="0",dp_rank="{i}"' if len(self.replicas) > 1 else ',tp_rank="0"'
            counters, used = replica.counters, replica.used_tokens
            gauges = {
                "sglang:max_total_num_tokens": self.kv_tokens,
                "sglang:num_running_reqs": len(replica.running),
                "sglang:num_queue_reqs": len(replica.waiting),
                "sglang:gen_throughput": self.throughput / len(self.replicas) if replica.running else 0.0,
                "sglang:token_usage": used / self.kv_tokens,
                "sglang:num_used_tokens": used,
                "sglang:cache_hit_rate": counters.cached_tokens / max(1, counters.prompt_tokens),
                "sglang:num_retracted_reqs": 0,
            }
            totals = {
                "sglang:prompt_tokens_total": counters.prompt_tokens,
                "sglang:generation_tokens_total": counters.generated_tokens,
                "sglang:num_requests_total": counters.finished,
            }
            out += _metrics(gauges, "gauge", labels) + _metrics(totals, "counter", labels)
            cached = {"sglang:cached_tokens_total": counters.cached_tokens}
            out += _metrics(cached, "counter", f'{labels},cache_source="device"')
            for key, metric in SGLANG_HISTOGRAMS.items():
                out += histograms[key].lines(metric, labels)
        return out

    def _llamacpp(self) -> list[str]:
        replica = self.replicas[0]
        counters = replica.counters
        computed = counters.prompt_tokens - counters.cached_tokens
        totals = {
            "llamacpp:prompt_tokens_total": computed,
            "llamacpp:prompt_tokens_cached_total": counters.cached_tokens,
            "llamacpp:prompt_seconds_total": counters.prefill_s,
            "llamacpp:tokens_predicted_total": counters.generated_tokens,
            "llamacpp:tokens_predicted_seconds_total": counters.decode_s,
            "llamacpp:n_decode_total": counters.steps,
        }
        gauges = {
            "llamacpp:prompt_tokens_seconds": computed / counters.prefill_s if counters.prefill_s else 0,
            "llamacpp:predicted_tokens_seconds": self.throughput if replica.running else 0,
            "llamacpp:requests_processing": len(replica.running),
            "llamacpp:requests_deferred": len(replica.waiting),
            "llamacpp:n_busy_slots_per_decode": counters.busy_sequence_steps / max(1, counters.steps),
        }
        return _metrics(totals, "counter", "") + _metrics(gauges, "gauge", "")


def _metrics(values: Mapping[str, float], kind: str, labels: str) -> list[str]:
    out = []
    for name, value in values.items():
        out += [f"# TYPE {name} {kind}", f"{name}{{{labels}}} {value}" if labels else f"{name} {value:g}"]
        if labels:
            out[-1] = f"{name}{{{labels}}} {float(value)}"
    return out
