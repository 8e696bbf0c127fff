"""What happens to a model's statistics (the running means of BatchNorm) between clients and server."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from accord.recipe import named


@named
class Buffers:
    """`average`: the server averages them like weights. `local`: each client goes on with its own. `freeze`: they never change."""

    kind: ClassVar[str] = "buffers"
    name: ClassVar[str]

    policy: Literal["average", "local", "freeze"] = "average"

    def prepare(self, module: nn.Module) -> None:
        """Called when a client starts training: frozen statistics are used, not the batch's."""
        if self.policy == "freeze":
            for child in module.modules():
                if isinstance(child, _NormBase) and child.track_running_stats:
                    child.eval()
