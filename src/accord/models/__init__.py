"""Models: recipe pieces that build modules for the data at hand."""

from accord.models.cnn import Cnn, ConvNet, femnist_cnn
from accord.models.drop import survival
from accord.models.fit import Fit, check
from accord.models.lenet import LeNet, LeNet5
from accord.models.mlp import Mlp, PerceptronNet
from accord.models.model import Model
from accord.models.resnet import Basic, Bottleneck, ResNet, ResNet18, ResNet56
from accord.models.slim import slimmed
from accord.models.stochastic import Stochastic, StochasticNet
from accord.models.text import CharRnn, RecurrentNet
from accord.models.vgg import VGG, Vgg11
from accord.models.vit import ViT, VitSmall, sl_vit

__all__ = [
    "VGG",
    "Basic",
    "Bottleneck",
    "CharRnn",
    "Cnn",
    "ConvNet",
    "Fit",
    "LeNet",
    "LeNet5",
    "Mlp",
    "Model",
    "PerceptronNet",
    "RecurrentNet",
    "ResNet",
    "ResNet18",
    "ResNet56",
    "Stochastic",
    "StochasticNet",
    "Vgg11",
    "ViT",
    "VitSmall",
    "check",
    "femnist_cnn",
    "sl_vit",
    "slimmed",
    "survival",
]
