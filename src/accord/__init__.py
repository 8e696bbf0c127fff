"""Accord: federated learning for clients that disagree."""

from accord.algorithm import Algorithm
from accord.algorithms import fedavg, fedconst, fedprox, fedsam, fedsol, scaffold
from accord.buffers import Buffers as buffers
from accord.client import Client, local_round
from accord.cohort import Cohort, Reply
from accord.data.build import federate
from accord.data.federation import Federation
from accord.data.pool import Batch
from accord.flat import Flat, Layout, Output, digest
from accord.part import Gradient, Part, State, Step
from accord.parts.constrain import Constrain as constrain
from accord.parts.control import Control as control
from accord.parts.distil import Distil as distil
from accord.parts.perturb import Perturb as perturb
from accord.parts.proximal import Proximal as proximal
from accord.parts.task import Task as task
from accord.personal import Finetune as finetune
from accord.personal import Personal
from accord.personal import Shared as shared
from accord.recipe import named, read
from accord.rules import SGD as sgd
from accord.select import All as all
from accord.select import Select
from accord.select import Uniform as uniform
from accord.server import Server, rounds, server_step

__version__ = "0.1.0"
