"""Each example runs, from any folder, in seconds."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SMALL = {
    "early_stopping.py": ["--rounds", "3"],
    "own_data.py": ["--rounds", "2", "--seeds", "2"],
    "own_part.py": ["--rounds", "2"],
    "resume.py": ["--rounds", "60"],
}


def test_every_example_is_tried() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SMALL)


@pytest.mark.parametrize("name", sorted(SMALL))
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / name), *SMALL[name]]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout
    assert not any(tmp_path.iterdir())
