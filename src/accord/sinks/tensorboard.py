"""Numbers for TensorBoard: `tensorboard --logdir FOLDER` shows those of every run below a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from accord.sinks.sink import Notes


class TensorBoard:
    """An event file in the run's folder `tensorboard`."""

    def __init__(self, notes: Notes) -> None:
        place = str(notes.folder / "tensorboard")
        self._writer = SummaryWriter(place, purge_step=notes.done + 1)  # rounds that are done again are shown once
        if not notes.done:
            self._text("configuration", notes.settings)

    def write(self, round: int, numbers: Mapping[str, float]) -> None:
        """One scalar for each number."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, round)
        self._writer.flush()

    def close(self, result: Mapping[str, Any] | None) -> None:
        """Write the result, if there is one, and close the file."""
        if result is not None:
            self._text("result", {key: result[key] for key in ("digest", "accuracy", "rounds")})
        self._writer.close()

    def _text(self, name: str, held: Mapping[str, Any]) -> None:
        lines = "".join(f"    {key} = {json.dumps(value, default=str)}\n" for key, value in held.items())
        self._writer.add_text(name, lines)
