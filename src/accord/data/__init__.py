"""Clients' data: sources, splits, and federations of both."""

from accord.data.augment import Augment, Crop, Cutout, Flip, Rotate
from accord.data.build import federate
from accord.data.catalog import Cifar10, Cifar100, Cinic10, FashionMnist, Femnist, Mnist, QmnistWriters, Svhn
from accord.data.digits import Digits
from accord.data.dirichlet import Dirichlet
from accord.data.federation import Federation
from accord.data.groups import Groups
from accord.data.hub import Folder, Hub
from accord.data.imagenet import Imagenet100, Imagenet200
from accord.data.medmnist import Pathmnist, Tissuemnist
from accord.data.npz import Npz
from accord.data.partition import Iid, Natural, Quantity, Split
from accord.data.plays import Shakespeare
from accord.data.pool import Batch, Pool
from accord.data.read import read_data, read_split
from accord.data.sharding import Sharding
from accord.data.shards import Shards
from accord.data.source import Loaded, Source
from accord.data.synthetic import Gaussians, Synthetic, SyntheticImages

__all__ = [
    "Augment",
    "Batch",
    "Cifar10",
    "Cifar100",
    "Cinic10",
    "Crop",
    "Cutout",
    "Digits",
    "Dirichlet",
    "FashionMnist",
    "Federation",
    "Femnist",
    "Flip",
    "Folder",
    "Gaussians",
    "Groups",
    "Hub",
    "Iid",
    "Imagenet100",
    "Imagenet200",
    "Loaded",
    "Mnist",
    "Natural",
    "Npz",
    "Pathmnist",
    "Pool",
    "QmnistWriters",
    "Quantity",
    "Rotate",
    "Shakespeare",
    "Sharding",
    "Shards",
    "Source",
    "Split",
    "Svhn",
    "Synthetic",
    "SyntheticImages",
    "Tissuemnist",
    "federate",
    "read_data",
    "read_split",
]
