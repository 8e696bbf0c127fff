"""What training cost: operations a sample, parameters that a client holds, bytes, and both until an accuracy is reached."""

from __future__ import annotations

from typing import Any

from torch import nn

from accord.algorithm import Algorithm
from accord.analysis.piece import Analysis, Progress, Values
from accord.analysis.subject import Subject
from accord.check import Count
from accord.cost import cost, forward_flops, stored_parameters
from accord.parts.task import Task
from accord.recipe import named
from accord.reports.record import Run

_BATCH = 2  # samples: the counts are exact for any number that BatchNorm can live with


class Spending(Analysis):
    """Forward operations of training a sample, stored parameters, bytes of a round, and what each accuracy took (FedAlign, Tables 5, 8).

    `forward_flops` counts a multiplication with its addition as two, as PyTorch's counter does, `forward_multiply_adds` as one, as
    papers' "MFLOPs" do; methods that draw what they compute are averaged over so many `steps`. `stored_parameters` holds the
    normalisation's scales and shifts, `stored_without_norm` does not, as in FedAlign's tables. `reached` has a row for each per cent
    of accuracy: the first evaluated round, bytes and gigabits one way and both ways, and operations. FedAlign's Table 8 counts one
    way only, and multiplies a sample's operations by the rounds.
    """

    steps: Count = 20

    def of(self, subject: Subject, progress: Progress) -> Values:
        progress("cost", 0, 3)
        algorithm, module = subject.algorithm, subject.first
        (x, y), *_ = subject.batches(_BATCH, _BATCH)
        flops = forward_flops(algorithm, module, (x, y), self.steps)
        progress("cost", 1, 3)
        stored, own = stored_parameters(algorithm, module, (x, y)), sum(p.numel() for p in module.parameters())
        progress("cost", 2, 3)
        counted = cost(algorithm)  # in units of the model, whatever the model
        progress("cost", 3, 3)
        return {
            "forward_flops": flops,
            "forward_multiply_adds": flops / 2,
            "model_flops": forward_flops(Algorithm((Task(),)), module, (x, y), 1),
            "parameters": own,
            "stored_parameters": stored,
            "stored_without_norm": round(stored * (1 - scales(module) / own)),
            "passes": {"forward": counted.forwards, "backward": counted.backwards, "whole": counted.extra},
            "text": str(counted),
            **traffic(subject.record),
            "reached": reached(subject.record, flops / 2),
        }


named(Spending, "cost")
_NORMS = (nn.modules.batchnorm._BatchNorm, nn.GroupNorm, nn.LayerNorm)


def scales(module: nn.Module) -> int:
    """How many parameters of a model are scales and shifts of normalisation.

    >>> scales(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))
    6
    """
    return sum(p.numel() for layer in module.modules() if isinstance(layer, _NORMS) for p in layer.parameters(recurse=False))


def traffic(record: Run) -> Values:
    """Bytes of the whole run, and of a client in a round on average."""
    up, down = (sum(row.get(key) or 0 for row in record.rounds) for key in ("bytes_up", "bytes_down"))
    answers = sum(len(row.get("clients") or ()) for row in record.rounds)
    each = {"bytes_up_per_client": up / answers, "bytes_down_per_client": down / answers} if answers else {}
    return {"rounds": len(record.rounds), "bytes_up": up, "bytes_down": down, **each}


def reached(record: Run, operations: float) -> list[dict[str, Any]]:
    """For each whole per cent of accuracy that the run reached: the first evaluated round that did, and what had been spent by then.

    `operations` are a sample's; `operations` of a row is that times the rounds, as in FedAlign's Table 8.
    """
    curve, best, rows = record.curve(), 0, []
    for at, accuracy in zip(curve.rounds, curve.accuracy, strict=True):
        up, down = (sum(row.get(key) or 0 for row in record.rounds if row["round"] <= at) for key in ("bytes_up", "bytes_down"))
        spent = {"round": at, "bytes_up": up, "bytes_down": down, "gigabits_up": 8 * up / 1e9, "gigabits": 8 * (up + down) / 1e9}
        spent["operations"] = operations * at
        whole = int(100 * accuracy + 1e-9)
        rows += [{"accuracy": percent / 100, **spent} for percent in range(best + 1, whole + 1)]
        best = max(best, whole)
    return rows
