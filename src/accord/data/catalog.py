"""The data sets of the papers by short names: where they are on the hub, how they are normalised and augmented."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from accord.data.augment import Augment, Crop, Flip
from accord.data.hub import Constants, assemble, find
from accord.data.source import Facts, Loaded, Source
from accord.data.table import Columns
from accord.recipe import named

CIFAR10: Constants = ((0.49139968, 0.48215827, 0.44653124), (0.24703233, 0.24348505, 0.26158768))
CIFAR100: Constants = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
CINIC10: Constants = ((0.47889522, 0.47227842, 0.43047404), (0.24205776, 0.23828046, 0.25874835))
SVHN: Constants = ((0.4376821, 0.4437697, 0.47280442), (0.19803012, 0.20101562, 0.19703614))
MNIST: Constants = ((0.1307,), (0.3081,))
FASHION: Constants = ((0.2860,), (0.3530,))
HALF: Constants = ((0.5,), (0.5,))


@named
class Cifar10(Source):
    """CIFAR-10 (Krizhevsky 2009): 50,000 and 10,000 colour images of 32x32; cropped and flipped in training.

    >>> from accord.data import read_data
    >>> read_data("cifar10(augment=(crop(4), flip, cutout(16)))").augment[2]
    cutout(size=16)
    """

    augment: tuple[Augment, ...] = (Crop(), Flip())
    facts: ClassVar[Facts | None] = Facts((3, 32, 32), 10, 50_000)

    def load(self, data_dir: Path | None = None) -> Loaded:
        found = find("uoft-cs/cifar10", Columns("img", "label"), "plain_text", data_dir)
        return assemble(found, CIFAR10, self.augment, "cifar10", 10)


@named
class Cifar100(Source):
    """CIFAR-100 (Krizhevsky 2009): 50,000 and 10,000 colour images of 32x32, 100 fine or 20 coarse classes.

    >>> from accord.data import read_data
    >>> read_data("cifar100(labels=coarse)").labels
    'coarse'
    """

    labels: Literal["fine", "coarse"] = "fine"
    augment: tuple[Augment, ...] = (Crop(), Flip())
    facts: ClassVar[Facts | None] = Facts((3, 32, 32), 100, 50_000)

    def load(self, data_dir: Path | None = None) -> Loaded:
        found = find("uoft-cs/cifar100", Columns("img", f"{self.labels}_label"), "cifar100", data_dir)
        return assemble(found, CIFAR100, self.augment, "cifar100", 100 if self.labels == "fine" else 20)


@named
class Mnist(Source):
    """MNIST (LeCun et al. 1998): 60,000 and 10,000 grey digits of 28x28."""

    augment: tuple[Augment, ...] = ()
    facts: ClassVar[Facts | None] = Facts((1, 28, 28), 10, 60_000)

    def load(self, data_dir: Path | None = None) -> Loaded:
        return assemble(find("ylecun/mnist", Columns("image", "label"), "mnist", data_dir), MNIST, self.augment, "mnist", 10)


@named
class FashionMnist(Source):
    """Fashion-MNIST (Xiao et al. 2017): 60,000 and 10,000 grey pictures of clothes, 28x28."""

    augment: tuple[Augment, ...] = ()
    facts: ClassVar[Facts | None] = Facts((1, 28, 28), 10, 60_000)

    def load(self, data_dir: Path | None = None) -> Loaded:
        found = find("zalando-datasets/fashion_mnist", Columns("image", "label"), "fashion_mnist", data_dir)
        return assemble(found, FASHION, self.augment, "fashion_mnist", 10)


@named
class Svhn(Source):
    """Street View house numbers (Netzer et al. 2011), cropped to 32x32: 73,257 and 26,032 digits; the extra ones are not used.

    FedSOL's program wraps every pixel v to 256 - v, and normalises what comes out by the constants of the true ones (`inverted`).
    """

    augment: tuple[Augment, ...] = (Crop(),)
    inverted: bool = False
    facts: ClassVar[Facts | None] = Facts((3, 32, 32), 10, 73_257)

    def load(self, data_dir: Path | None = None) -> Loaded:
        found = find("ufldl-stanford/svhn", Columns("image", "label"), "cropped_digits", data_dir)
        if self.inverted:
            found = {name: tensor.neg() if name in ("train/x", "test/x") else tensor for name, tensor in found.items()}
        return assemble(found, SVHN, self.augment, "svhn", 10)


@named
class Cinic10(Source):
    """CINIC-10 (Darlow et al. 2018): 90,000 training and 90,000 test images of 32x32; its validation set is not used."""

    augment: tuple[Augment, ...] = (Crop(4, "reflect"), Flip())
    facts: ClassVar[Facts | None] = Facts((3, 32, 32), 10, 90_000)

    def load(self, data_dir: Path | None = None) -> Loaded:
        return assemble(find("flwrlabs/cinic10", Columns("image", "label"), None, data_dir), CINIC10, self.augment, "cinic10", 10)


@named
class Femnist(Source):
    """FEMNIST (LEAF, Caldas et al. 2018): 814,277 characters of 62 classes, 28x28; split it by `natural(writer_id)`.

    The hub has no test set of it: a tenth of every class, of all writers, becomes one. `local_test` sets each writer's own apart.
    """

    augment: tuple[Augment, ...] = ()
    facts: ClassVar[Facts | None] = Facts((1, 28, 28), 62, 732_850, 3_597)

    def load(self, data_dir: Path | None = None) -> Loaded:
        return assemble(find("flwrlabs/femnist", Columns("image", "character"), None, data_dir), HALF, self.augment, "femnist", 62)


@named
class QmnistWriters(Source):
    """MNIST with every digit's writer from QMNIST, in a local folder `qmnist-writers`; split it by `natural(writer_id)`."""

    augment: tuple[Augment, ...] = ()
    facts: ClassVar[Facts | None] = Facts((1, 28, 28), 10, 60_000, 539)

    def load(self, data_dir: Path | None = None) -> Loaded:
        return assemble(find("qmnist-writers", Columns("image", "label"), None, data_dir), MNIST, self.augment, "qmnist_writers", 10)
