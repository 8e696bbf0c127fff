"""Analyses of a trained model and of a run: curvature, landscape, clients, signal and noise of gradients, features, cost, knowledge."""

from accord.analysis.analyze import ORDER, analyze
from accord.analysis.curvature import Curvature, eigenvalues, trace
from accord.analysis.forgetting import Forgetting, forgetting
from accord.analysis.labels import Labels, heterogeneity
from accord.analysis.piece import Analysis, Progress, Values, quiet
from accord.analysis.spending import Spending
from accord.analysis.subject import Subject

__all__ = [
    "ORDER",
    "Analysis",
    "Curvature",
    "Forgetting",
    "Labels",
    "Progress",
    "Spending",
    "Subject",
    "Values",
    "analyze",
    "eigenvalues",
    "forgetting",
    "heterogeneity",
    "quiet",
    "trace",
]
