"""The parts of ImageNet that papers on federated learning use."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from accord.data.augment import Augment, Crop, Flip
from accord.data.hub import Constants, assemble, find
from accord.data.source import Facts, Loaded, Source
from accord.data.table import Columns
from accord.recipe import named

IMAGENET: Constants = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@named
class Imagenet100(Source):
    """ImageNet-100 (Tian et al. 2020): 126,689 and 5,000 colour images of 100 classes of ImageNet, brought to 64x64."""

    augment: tuple[Augment, ...] = (Crop(8), Flip())
    facts: ClassVar[Facts | None] = Facts((3, 64, 64), 100, 126_689)

    def load(self, data_dir: Path | None = None) -> Loaded:
        found = find("clane9/imagenet-100", Columns("image", "label", 64), None, data_dir)
        return assemble(found, IMAGENET, self.augment, "imagenet100", 100)


@named
class Imagenet200(Source):
    """FedAlign's ImageNet-200: 500 training images of each of 200 classes of ImageNet, at 224x224; needs a local folder `imagenet-200`.

    The paper draws the classes at random; the folder holds them as `train/<class>/` and `test/<class>/`, or as parquet files.
    """

    augment: tuple[Augment, ...] = (Crop(28), Flip())
    facts: ClassVar[Facts | None] = Facts((3, 224, 224), 200, 100_000)

    def load(self, data_dir: Path | None = None) -> Loaded:
        found = find("imagenet-200", Columns(None, None, 224), None, data_dir)
        return assemble(found, IMAGENET, self.augment, "imagenet200", 200)
