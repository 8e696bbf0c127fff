"""Numbers for Weights & Biases, offline: `wandb sync RUN/wandb/offline-run-*` sends them when a person wants it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from accord.sinks.sink import Notes


class WandB:
    """An offline run in the run's folder `wandb`. A run that goes on has the same identity, so that syncing joins its pieces."""

    def __init__(self, notes: Notes) -> None:
        os.environ["WANDB_ERROR_REPORTING"] = "false"
        import wandb

        note = notes.folder / "wandb" / "id"
        note.parent.mkdir(exist_ok=True)
        quiet = wandb.Settings(
            silent=True,
            console="off",
            disable_git=True,
            disable_code=True,
            disable_job_creation=True,
            x_disable_meta=True,
            x_disable_stats=True,
        )
        self._run = wandb.init(
            project="accord",
            name=notes.name,
            id=note.read_text(encoding="utf-8") if note.is_file() else None,
            dir=str(notes.folder),
            mode="offline",
            config=dict(notes.settings),
            reinit="create_new",
            settings=quiet,
        )
        note.write_text(self._run.id, encoding="utf-8")

    def write(self, round: int, numbers: Mapping[str, float]) -> None:
        """One row, at the round as its step."""
        self._run.log(dict(numbers), step=round)

    def close(self, result: Mapping[str, Any] | None) -> None:
        """Write the result, if there is one, and finish."""
        if result is not None:
            self._run.summary.update({key: result[key] for key in ("digest", "accuracy", "rounds")})
        self._run.finish(exit_code=1 if result is None else 0)
