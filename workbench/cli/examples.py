"""Examples for the help of every command. Each is a command line that the parser accepts (tests/unit/cli)."""

from __future__ import annotations

EXIT_CODES = """exit codes:
  0    success
  1    failure
  2    bad usage or input
  3    the benchmark finished, but its result is not valid
  130  interrupted"""

EXAMPLES: dict[str, tuple[str, ...]] = {
    "": (
        "workbench demo",
        "workbench gpu-box.example",
        "workbench presets list",
        "workbench --simulate four-pcie start vllm-any --wait",
    ),
    "demo": ("workbench demo", "workbench demo --host-profile four-pcie", "workbench demo --list"),
    "screenshots": ("workbench screenshots pictures",),
    "presets": ("workbench presets list",),
    "presets list": ("workbench presets list", "workbench presets list --json"),
    "presets show": ("workbench presets show vllm-any",),
    "presets check": ("workbench presets check my-preset.toml",),
    "presets path": ("workbench presets path",),
    "flags": ("workbench flags vllm --search cache", "workbench flags sglang --json"),
    "plan": (
        "workbench plan vllm-any --var model=Qwen/Qwen3-0.6B",
        "workbench --host gpu-box plan vllm-any --set max-num-seqs=64 --env VLLM_LOGGING_LEVEL=DEBUG",
    ),
    "start": (
        "workbench start vllm-any --wait",
        "workbench --host gpu-box start vllm-any --set port=8001 --wait --timeout 600",
    ),
    "servers": ("workbench servers", "workbench --host gpu-box servers --json"),
    "logs": ("workbench logs RUN --follow",),
    "stop": ("workbench stop RUN",),
    "bench": (
        "workbench bench RUN --concurrency 8",
        "workbench bench --url http://127.0.0.1:8000 --concurrency 1,2,4,8,16",
        "workbench bench RUN --rate 4 --seconds 30 --arrival poisson",
        "workbench bench RUN -- python eval.py --base-url {base_url}",
    ),
    "compare": (
        "workbench compare 41 42",
        "workbench compare 41-43 44,45,47",
        "workbench compare --tag before --tag after --arm driver",
    ),
    "results": ("workbench results list --limit 20",),
    "results list": ("workbench results list --limit 20", "workbench results list --tag baseline"),
    "results search": ("workbench results search qwen power-limit",),
    "results show": ("workbench results show 42 --json",),
    "results note": ('workbench results note 42 "after the reboot"',),
    "results tag": ("workbench results tag 42 +baseline",),
    "results export": ("workbench results export 42 --format csv",),
    "results report": (
        "workbench results report 41-43 44-46 -o report.html",
        "workbench results report --experiment 3",
    ),
    "results import": ("workbench results import bench.json --engine vllm --on gpu-box",),
    "experiment": (
        'workbench experiment vllm-any --a "max-num-seqs=64" --b "max-num-seqs=256" --pairs 5',
        "workbench experiment --a http://127.0.0.1:8000 --b http://127.0.0.1:8001 --pairs 5",
        'workbench experiment --a vllm-any --b "sglang-any tp-size=2" --var model=Qwen/Qwen3-0.6B',
        "workbench experiment vllm-any --host-a gpu-box-1 --host-b gpu-box-2",
        'workbench experiment RUN --gpu-a "power-limit=600" --gpu-b "power-limit=450" --until 2',
    ),
    "experiment resume": ("workbench experiment resume 3",),
    "experiment show": ("workbench experiment show 3",),
    "experiment list": ("workbench experiment list",),
    "sweep": ("workbench sweep vllm-any --flag max-num-seqs=64,128,256",),
    "sweep resume": ("workbench sweep resume 2",),
    "sweep list": ("workbench sweep list",),
    "sweep show": ("workbench sweep show 2",),
    "gpu": ("workbench gpu status",),
    "gpu status": ("workbench gpu status --json",),
    "gpu set": (
        "workbench gpu set --gpu 0 --power-limit 400 --dry-run",
        "workbench gpu set --gpu all --power-limit 400 --trial 300 --yes",
    ),
    "gpu revert": ("workbench gpu revert --gpu 0",),
    "gpu confirm": ("workbench gpu confirm",),
    "gpu keep": ("workbench gpu keep",),
    "gpu journal": ("workbench gpu journal --json",),
    "gpu sudoers": ("workbench gpu sudoers > workbench-sudoers",),
    "gpu verify": ("workbench gpu verify RUN --seconds 10",),
    "gpu sweep": ("workbench gpu sweep RUN --power-limit 300,350,400,450",),
    "gpu sweep resume": ("workbench gpu sweep resume 2",),
    "doctor": ("workbench --host gpu-box doctor",),
    "config": ("workbench config print",),
    "config print": ("workbench config print",),
    "config path": ("workbench config path",),
    "completion": ('eval "$(workbench completion bash)"', "workbench completion fish > workbench.fish"),
    "help": ("workbench help bench",),
}


def epilog(name: str) -> str:
    """Return the examples of one command as the end of its help. The top command also lists the exit codes."""
    lines = "\n".join(f"  {line}" for line in EXAMPLES.get(name, ()))
    examples = f"examples:\n{lines}" if lines else ""
    return "\n\n".join(filter(None, (examples, "" if name else EXIT_CODES)))
