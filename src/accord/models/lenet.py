"""LeNet-5."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from accord.flat import Output
from accord.models.init import Init, initialise
from accord.models.model import Model, image_shape
from accord.models.norm import Norm, normalise
from accord.models.pool import halve
from accord.models.project import project
from accord.recipe import named


class LeNet(nn.Module):
    """Convolutions of 6 and 16 filters of 5x5, each with max-pooling and ReLU, then 120, 84 and the classes.

    >>> import torch
    >>> out = LeNet((3, 32, 32), 10)(torch.zeros(2, 3, 32, 32))
    >>> out.logits.shape, out.features.shape
    (torch.Size([2, 10]), torch.Size([2, 84]))
    """

    stages = ("conv1", "conv2")
    one_size = True

    def __init__(
        self, shape: tuple[int, int, int], classes: int, bias: bool = False, norm: Norm = "none", projection: bool = False
    ) -> None:
        nn.Module.__init__(self)
        channels, high, wide = shape
        self.conv1 = nn.Conv2d(channels, 6, 5, bias=bias)
        self.norm1 = normalise(norm, 6)
        self.conv2 = nn.Conv2d(6, 16, 5, bias=bias)
        self.norm2 = normalise(norm, 16)
        for _ in range(2):
            high, wide = (high - 4) // 2, (wide - 4) // 2
        self.fc1 = nn.Linear(16 * high * wide, 120, bias=bias)
        self.fc2 = nn.Linear(120, 84, bias=bias)
        self.project, features = project(projection, 84, bias)
        self.head = nn.Linear(features, classes, bias=bias)

    def forward(self, x: Tensor) -> Output:
        x = F.relu(halve(self.norm1(self.conv1(x))), inplace=True)
        x = F.relu(halve(self.norm2(self.conv2(x))), inplace=True)
        x = F.relu(self.fc1(x.flatten(1)), inplace=True)
        features = self.project(F.relu(self.fc2(x), inplace=True))
        return Output(self.head(features), features)


class LeNet5(Model):
    """LeCun et al. 1998 with ReLU and max-pooling, as FedCONST uses it: no biases unless asked for.

    `init="he"` draws weights from He's normal distribution and sets biases to zero, `"torch"` leaves torch's own draw, `"sphere"`
    centres its rows and gives them the norm sqrt(2). `norm` stands behind each convolution, `projection` puts MOON's two layers
    before the head, whose result are the features.

    >>> from accord.models.lenet import LeNet5
    >>> sum(p.numel() for p in LeNet5().build((3, 32, 32), 10).parameters())
    61770
    """

    bias: bool = False
    init: Init = "torch"
    norm: Norm = "none"
    projection: bool = False

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        images = image_shape(shape, "lenet5", 16)
        return initialise(LeNet(images, classes, self.bias, self.norm, self.projection), self.init)


named(LeNet5, "lenet5")
