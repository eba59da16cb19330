"""Arguments of bench, compare."""

from __future__ import annotations

from workbench.cli.arguments import Commands, add


def measuring(sub: Commands) -> None:
    bench = add(sub, "bench", "benchmark a run, or any OpenAI-compatible server by URL")
    bench.add_argument("run", nargs="?", metavar="RUN")
    bench.add_argument("--url", help="base URL of a server that Workbench did not start")
    bench.add_argument("--model", help="model name to ask for (default: the first the server names)")
    bench.add_argument("--concurrency", default=None, metavar="N[,N…]")
    for name in ("requests", "max-tokens", "input-tokens", "warmup"):
        bench.add_argument(f"--{name}", type=int, default=None, metavar="N")
    bench.add_argument("--shared-prefix", action="store_true", help="keep the prefix cache in play")
    bench.add_argument("--api-key-env", metavar="NAME", help="environment variable that holds the API key")
    compare = add(sub, "compare", "what changed between two results, and what it did")
    compare.add_argument("a", type=int)
    compare.add_argument("b", type=int)

