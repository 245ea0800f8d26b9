"""The README's blocks, run against a real server."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_finds_the_blocks() -> None:
    assert len(BLOCKS) == 5


@pytest.mark.parametrize("block", BLOCKS)
def test_runs_the_block(block: str, server_url: str) -> None:
    scope: dict[str, object] = {}
    exec(block.replace("http://127.0.0.1:8080", server_url).replace("timeout=0.25", "timeout=10"), scope)
    for name in ("client", "session"):
        if hasattr(it := scope.get(name), "close"):
            it.close()
