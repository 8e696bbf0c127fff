"""A federation as an ordinary Flower app: a directory that `flwr run` runs, holding settings and no code."""

from __future__ import annotations

from pathlib import Path

import tomli_w

from accord.experiment import Experiment
from accord.run import make

VERSION = "1.0.0"
_README = """# A federation

An app for [Flower](https://flower.ai): `flwr run .` starts it on the SuperLink that your Flower configuration names.
Its components are `accord.flower:server_app` and `accord.flower:client_app`; Accord has to be installed, with its
extra `flower`, wherever a SuperLink or a SuperNode runs. There is no code in this directory.

What is trained, and how, are the settings `[tool.flwr.app.config]` in `pyproject.toml`:

- `experiment`: the experiment file, as a text;
- `state`: the server's folder, with its checkpoints and results; the next `flwr run` goes on from what it holds;
- `min-clients`: how many sites must be connected before a round begins (0: all);
- `round-timeout`: seconds that a site has to answer;
- `test-here`: whether the server tests the model on the test part of the experiment's data.

A SuperNode finds its site's settings, which `accord join` otherwise writes, by `--node-config 'site="/path/site.toml"'`, a file with
`name`, `state` and `data`. For a rehearsal on split data, `--node-config 'partition-id=0'` is enough.
"""


def settings(experiment: Experiment, state: Path, *, least: int, timeout: float, test_here: bool) -> dict[str, object]:
    """The app's own settings."""
    return {
        "experiment": experiment.toml(),
        "state": str(state),
        "min-clients": least,
        "round-timeout": timeout,
        "test-here": test_here,
    }


def export(experiment: Experiment, folder: Path, state: Path, *, least: int = 0, timeout: float = 600.0, test_here: bool = True) -> Path:
    """Write the app, and return its folder.

    >>> import tempfile
    >>> app = export(Experiment(clients=3), Path(tempfile.mkdtemp()), Path("state"))
    >>> sorted(file.name for file in app.iterdir())
    ['README.md', 'pyproject.toml']
    """
    make(folder)
    app = {
        "publisher": "accord",
        "fab-include": ["README.md"],
        "components": {"serverapp": "accord.flower:server_app", "clientapp": "accord.flower:client_app"},
        "config": settings(experiment, state, least=least, timeout=timeout, test_here=test_here),
    }
    project = {
        "name": "federation",
        "version": VERSION,
        "description": "A federation on Accord",
        "license": "Apache-2.0",
        "dependencies": [],
    }
    (folder / "pyproject.toml").write_text(tomli_w.dumps({"project": project, "tool": {"flwr": {"app": app}}}), encoding="utf-8")
    (folder / "README.md").write_text(_README, encoding="utf-8")
    return folder
