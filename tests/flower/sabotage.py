"""A site that goes wrong in another way each round: loaded by `accord join --use`, it takes the place of what a site answers."""

from __future__ import annotations

import math
import os
import time
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, RecordDict

from accord.flower import site
from accord.flower.wire import pack, unpack

honest = site.reply


def spoiled(answer: Any, job: Any, *rest: Any) -> RecordDict:
    """Late, not finite, misshapen, of another recipe, garbage; honest from the sixth round on."""
    sent = honest(answer, job, *rest)
    named = unpack(sent["w"])
    if job.round == 0:
        time.sleep(float(os.environ["SABOTAGE_SECONDS"]))
    elif job.round == 1:
        sent["w"] = pack({name: tensor * math.nan for name, tensor in named.items()})
    elif job.round == 2:
        sent["w"] = pack({name: torch.zeros(2, 2) for name in named})
    elif job.round == 3:
        sent["up"] = pack({"normalise/1/a": torch.zeros(1)})
    elif job.round == 4:
        first = next(iter(named))
        sent["w"] = ArrayRecord({**sent["w"], first: Array("float32", (3,), "numpy.ndarray", b"\x93NUMPYgarbage")})
    return sent


if "SABOTAGE_SECONDS" in os.environ:  # not where doctests are looked for
    site.reply = spoiled
