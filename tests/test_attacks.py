"""Every attack in tests/attacks is refused, soon and within bounds, and the refusal says why."""

from __future__ import annotations

import runpy
import subprocess
import sys
import time
from pathlib import Path

import pytest

ATTACKS = Path(__file__).parent / "attacks"
RUNNER = runpy.run_path(str(ATTACKS / "__main__.py"))
SECONDS = 20  # the slowest, a gzip bomb, takes 1 to 2; this is for one that would not end


@pytest.mark.parametrize("name", RUNNER["names"]())
def test_an_attack_is_refused(name: str):
    began = time.monotonic()
    RUNNER["attempt"](name)
    assert time.monotonic() - began < SECONDS


def test_the_attacks_run_by_hand():
    run = subprocess.run(
        [sys.executable, ATTACKS, "index_path_parent"], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert "index_path_parent" in run.stdout and "leaves the index's folder" in run.stdout


def test_an_attack_that_gets_through_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The runner itself can fail: a sound file, and one refused for another reason."""
    monkeypatch.setitem(RUNNER["attempt"].__globals__, "HERE", tmp_path)
    build = (
        "import forge\nREFUSED = ({},)\n"
        "def build(folder):\n    return forge.write(folder / 'a.safetensors', {})\n"
    )
    (tmp_path / "sound.py").write_text(build.format('""', 'forge.shard("a")'))
    (tmp_path / "other.py").write_text(build.format('"overlap"', 'b""'))
    with pytest.raises(AssertionError, match="sound was read: 1 tensors"):
        RUNNER["attempt"]("sound")
    with pytest.raises(AssertionError, match="'overlap' is not said"):
        RUNNER["attempt"]("other")
