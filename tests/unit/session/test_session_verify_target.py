"""The server that `gpu verify` is given."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest

from workbench.model.errors import InputError
from workbench.model.setting_records import Alteration
from workbench.session.gpu.proof import GpuVerifier


def test_an_empty_url_is_no_verification_without_a_server() -> None:
    """`gpu verify --url "$URL"` with an empty variable was answered by a reading alone."""
    core: Any = MagicMock()
    core.state.alterations = (Alteration(0, "GPU-0", "persistence", False, True, 1.0),)
    gpu: Any = SimpleNamespace(alterations=AsyncMock())
    load: Any = SimpleNamespace(open_load_on_server=MagicMock(side_effect=InputError("not a URL")))
    verifier = GpuVerifier(core, MagicMock(), gpu, load)
    with pytest.raises(InputError, match="not a URL"):
        asyncio.run(verifier.verify_alterations(url=""))
