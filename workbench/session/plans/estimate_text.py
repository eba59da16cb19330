"""The change of a memory estimate as text, for a flag that is being edited."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workbench.engines import MemoryFit


def memory_estimate_change_text(before: MemoryFit | str, after: MemoryFit | str) -> str:
    """Return the change from the estimate `before` to the estimate `after` as text: memory per GPU
    and KV cache, such as "est. memory per GPU 21.4 > 23.0 of 24.0 GiB, KV cache 65,536 > 81,920
    tokens". A str in place of an estimate is the reason why there is none: without `after`, the
    text is that reason, and without `before`, it has only the new values."""
    if isinstance(after, str):
        return f"no estimate: {after}"
    old = None if isinstance(before, str) else before
    used = _value_change_text(
        f"{old.used_gib_per_gpu:.1f}" if old is not None else None, f"{after.used_gib_per_gpu:.1f}"
    )
    parts = [f"memory per GPU {used} of {after.available_gib_per_gpu:.1f} GiB"]
    if after.kv_tokens is not None:
        known = f"{old.kv_tokens:,}" if old is not None and old.kv_tokens is not None else None
        parts.append(f"KV cache {_value_change_text(known, f'{after.kv_tokens:,}')} tokens")
    if not after.fits:
        parts.append("does not fit")
    return "est. " + ", ".join(parts)


def _value_change_text(before: str | None, after: str) -> str:
    return after if before in (None, after) else f"{before} > {after}"
