"""Numbers for MLflow: `mlflow ui --backend-store-uri sqlite:///RUN/mlflow/mlflow.db` shows those of a run."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Mapping
from typing import Any

from accord.sinks.sink import Notes

_MOST = 100  # parameters that MLflow takes at once


class MLflow:
    """A data base in the run's folder `mlflow`. A run that goes on continues its MLflow run."""

    def __init__(self, notes: Notes) -> None:
        os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"  # read when MLflow is first imported
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)
        folder = (notes.folder / "mlflow").resolve()
        folder.mkdir(exist_ok=True)
        self._client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
        known = self._client.get_experiment_by_name("accord")
        place = known.experiment_id if known else self._client.create_experiment("accord", artifact_location=folder.as_uri())
        earlier = self._client.search_runs([place], max_results=1)
        if earlier:
            self._run = earlier[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
            return
        self._run = self._client.create_run(place, run_name=notes.name).info.run_id
        told = [Param(key, value if isinstance(value, str) else json.dumps(value)) for key, value in notes.settings.items()]
        for first in range(0, len(told), _MOST):
            self._client.log_batch(self._run, params=told[first : first + _MOST])

    def write(self, round: int, numbers: Mapping[str, float]) -> None:
        """One metric for each number, at the round as its step."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        told = [Metric(name, value, now, round) for name, value in numbers.items()]
        for first in range(0, len(told), 1000):
            self._client.log_batch(self._run, metrics=told[first : first + 1000])

    def close(self, result: Mapping[str, Any] | None) -> None:
        """Say how the run ended."""
        if result is not None:
            self._client.set_tag(self._run, "digest", result["digest"])
        self._client.set_terminated(self._run, "KILLED" if result is None else "FINISHED")
