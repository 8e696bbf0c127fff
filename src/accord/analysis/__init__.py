"""Analyses of a trained model and of a run: curvature, landscape, clients, signal and noise of gradients, features, cost, knowledge."""

from accord.analysis.analyze import ORDER, analyze
from accord.analysis.clients import Clients, Diagonal, hessian_diagonal, hessian_match
from accord.analysis.curvature import Curvature, eigenvalues, trace
from accord.analysis.features import Features, cka, in_the_plane, without
from accord.analysis.forgetting import Forgetting, forgetting
from accord.analysis.gsnr import Gsnr, Moments, against_size, by_update, gradient_moments, one_step
from accord.analysis.labels import Labels, heterogeneity
from accord.analysis.landscape import Landscape, losses, mean_loss, random_direction
from accord.analysis.piece import Analysis, Progress, Values, quiet
from accord.analysis.spectrum import Spectrum, spectral_density
from accord.analysis.spending import Spending
from accord.analysis.subject import Subject

__all__ = [
    "ORDER",
    "Analysis",
    "Clients",
    "Curvature",
    "Diagonal",
    "Features",
    "Forgetting",
    "Gsnr",
    "Labels",
    "Landscape",
    "Moments",
    "Progress",
    "Spectrum",
    "Spending",
    "Subject",
    "Values",
    "against_size",
    "analyze",
    "by_update",
    "cka",
    "eigenvalues",
    "forgetting",
    "gradient_moments",
    "hessian_diagonal",
    "hessian_match",
    "heterogeneity",
    "in_the_plane",
    "losses",
    "mean_loss",
    "one_step",
    "quiet",
    "random_direction",
    "spectral_density",
    "trace",
    "without",
]
