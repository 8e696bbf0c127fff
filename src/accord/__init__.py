"""Accord: federated learning for clients that disagree."""

from accord import models as models
from accord.algorithm import Algorithm
from accord.algorithms import (
    adabest,
    centralised,
    fedadagrad,
    fedadam,
    fedalign,
    fedasam,
    fedavg,
    fedavgm,
    fedbabu,
    fedconst,
    feddyn,
    fedmrur,
    fednova,
    fedntd,
    fedoptz,
    fedprox,
    fedsam,
    fedsol,
    fedsol_a0,
    fedsol_a1,
    fedsol_a2,
    fedsol_a3,
    fedsol_a4,
    fedsol_a5,
    fedsol_a6,
    fedsr,
    fedyogi,
    gradaug,
    knnper,
    local_only,
    mixup,
    moon,
    perfedavg,
    projection,
    scaffold,
)
from accord.buffers import Buffers as buffers
from accord.client import Client, local_round
from accord.cohort import Cohort, Reply
from accord.cost import Cost, cost
from accord.data.build import federate
from accord.data.federation import Federation
from accord.data.pool import Batch
from accord.flat import Flat, Layout, Output, digest
from accord.part import Gradient, Part, State, Step
from accord.parts.adapt import Adapt as adapt
from accord.parts.align import Align as align
from accord.parts.alone import Alone as alone
from accord.parts.beside import Beside as beside
from accord.parts.constrain import Constrain as constrain
from accord.parts.contrast import Contrast as contrast
from accord.parts.control import Control as control
from accord.parts.corrective import Corrective as corrective
from accord.parts.debias import Debias as debias
from accord.parts.distil import Distil as distil
from accord.parts.dynamic import Dynamic as dynamic
from accord.parts.gather import Gather as gather
from accord.parts.hold import Hold as hold
from accord.parts.inertia import Inertia as inertia
from accord.parts.meta import Meta as meta
from accord.parts.normalise import Normalise as normalise
from accord.parts.not_true import NotTrue as not_true
from accord.parts.perturb import Perturb as perturb
from accord.parts.project import Project as project
from accord.parts.proximal import Proximal as proximal
from accord.parts.renormalise import Renormalise as renormalise
from accord.parts.represent import Represent as represent
from accord.parts.task import Task as task
from accord.parts.together import Together as together
from accord.personal import Finetune as finetune
from accord.personal import KnnPer as knn_per
from accord.personal import Own as own
from accord.personal import Personal
from accord.personal import Shared as shared
from accord.recipe import named, read
from accord.rules import SGD as sgd
from accord.select import All as all
from accord.select import Groups as groups
from accord.select import PowerOfChoice as power_of_choice
from accord.select import Select
from accord.select import Uniform as uniform
from accord.server import Server, rounds, server_step

__version__ = "0.1.0"

__all__ = [
    "Algorithm",
    "Batch",
    "Client",
    "Cohort",
    "Cost",
    "Federation",
    "Flat",
    "Gradient",
    "Layout",
    "Output",
    "Part",
    "Personal",
    "Reply",
    "Select",
    "Server",
    "State",
    "Step",
    "adabest",
    "adapt",
    "align",
    "all",
    "alone",
    "beside",
    "buffers",
    "centralised",
    "constrain",
    "contrast",
    "control",
    "corrective",
    "cost",
    "debias",
    "digest",
    "distil",
    "dynamic",
    "fedadagrad",
    "fedadam",
    "fedalign",
    "fedasam",
    "fedavg",
    "fedavgm",
    "fedbabu",
    "fedconst",
    "feddyn",
    "federate",
    "fedmrur",
    "fednova",
    "fedntd",
    "fedoptz",
    "fedprox",
    "fedsam",
    "fedsol",
    "fedsol_a0",
    "fedsol_a1",
    "fedsol_a2",
    "fedsol_a3",
    "fedsol_a4",
    "fedsol_a5",
    "fedsol_a6",
    "fedsr",
    "fedyogi",
    "finetune",
    "gather",
    "gradaug",
    "groups",
    "hold",
    "inertia",
    "knn_per",
    "knnper",
    "local_only",
    "local_round",
    "meta",
    "mixup",
    "models",
    "moon",
    "named",
    "normalise",
    "not_true",
    "own",
    "perfedavg",
    "perturb",
    "power_of_choice",
    "project",
    "projection",
    "proximal",
    "read",
    "renormalise",
    "represent",
    "rounds",
    "scaffold",
    "server_step",
    "sgd",
    "shared",
    "task",
    "together",
    "uniform",
]
