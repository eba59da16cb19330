"""The ways in which servers are asked for log probabilities: one module for each interface.

base          what all have in common
vllm          vLLM: the whole prompt in one request; a token that is given
sglang        SGLang: the same through its own endpoint
llama_server  llama-server: one token at a time, forced by a bias
tabbyapi      TabbyAPI: one token at a time, after a text; tokens are named by their text

`Engine.score_interface` names the interface of an engine. `interface_class` returns its class.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workbench.quality.lanes.base import ScoringInterface

_CLASSES = {
    "prompt_logprobs": ("vllm", "VllmInterface"),
    "generate": ("sglang", "SglangInterface"),
    "completion": ("llama_server", "LlamaServerInterface"),
    "text": ("tabbyapi", "TabbyInterface"),
}


def interface_class(name: str) -> type[ScoringInterface]:
    """Return the class of the scoring interface `name`, which is `score_interface` of an engine."""
    module, kind = _CLASSES[name]
    found: type[ScoringInterface] = getattr(
        import_module(f"workbench.quality.lanes.{module}"), kind
    )
    return found
