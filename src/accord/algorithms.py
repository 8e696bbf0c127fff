"""Named algorithms, each a composition of parts with its published constants."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from accord.algorithm import Algorithm
from accord.check import Count, Fraction, NonNegative, Positive, Range
from accord.flat import On
from accord.part import Part
from accord.parts.adapt import Adapt
from accord.parts.align import Align
from accord.parts.alone import Alone
from accord.parts.beside import Beside
from accord.parts.constrain import Constrain
from accord.parts.contrast import Contrast
from accord.parts.control import Control
from accord.parts.corrective import Corrective
from accord.parts.debias import Debias
from accord.parts.distil import Distil
from accord.parts.dynamic import Dynamic
from accord.parts.gather import Gather
from accord.parts.gradaug import Gradaug
from accord.parts.hold import Hold
from accord.parts.inertia import Inertia
from accord.parts.meta import Meta
from accord.parts.mixup import Mixup
from accord.parts.normalise import Normalise
from accord.parts.not_true import NotTrue
from accord.parts.perturb import Perturb
from accord.parts.project import Project
from accord.parts.proximal import Proximal
from accord.parts.renormalise import Renormalise
from accord.parts.represent import Represent
from accord.parts.task import Task
from accord.parts.together import Together
from accord.personal import Finetune, KnnPer, Own
from accord.recipe import named
from accord.rules import SGD

Weights = Literal["samples", "uniform"]


@named
def fedavg(weights: Weights = "samples") -> Algorithm:
    """The mean of what the clients learn by themselves. McMahan et al., 2017."""
    return Algorithm((Task(weights),))


@named
def fedprox(mu: NonNegative = 0.01) -> Algorithm:
    """FedAvg with a pull back to the global weights. Li et al., 2020."""
    return fedavg() + Proximal(mu)


@named
def scaffold(
    divisor: Literal["momentum", "plain"] = "momentum",
    option: Literal["I", "II"] = "II",
    apply: Literal["gradient", "step"] = "gradient",
    weights: Weights = "samples",
) -> Algorithm:
    """FedAvg with control variates against client drift. Karimireddy et al., 2020, whose mean is `uniform`."""
    return fedavg(weights) + Control(divisor, option, apply)


@named
def fednova(weights: Weights = "samples", mu: NonNegative = 0.0) -> Algorithm:
    """FedAvg with updates divided by how far the local steps reach, and with `mu` a pull back to the global weights. Wang et al., 2020."""
    plain = fedavg(weights)
    return (plain + Proximal(mu) if mu else plain) + Normalise(weights, mu)


@named
def feddyn(
    alpha: NonNegative = 0.1, weights: Weights = "uniform", scale: Literal["none", "samples"] = "none", clip: Positive | None = None
) -> Algorithm:
    """FedAvg with objectives bent until their optima meet. Acar et al., 2021."""
    return fedavg(weights) + Dynamic(alpha, scale, clip)


@named
def moon(
    mu: NonNegative = 1.0,
    tau: Positive = 0.5,
    mode: Literal["eval", "train"] = "eval",
    negative: Literal["local", "global"] = "local",
) -> Algorithm:
    """FedAvg with features drawn to the global model's and away from the last local ones. Li et al., 2021."""
    return fedavg() + Contrast(mu, tau, mode, negative)


@named
def fedntd(beta: NonNegative = 1.0, tau: Positive = 1.0) -> Algorithm:
    """FedAvg with distillation of the not-true classes. Lee et al., 2022."""
    return fedavg() + NotTrue(beta, tau)


@named
def mixup(gamma: NonNegative = 0.1) -> Algorithm:
    """FedAvg on mixed pairs of samples. Zhang et al., 2018, in FedAlign's study."""
    return fedavg() + Mixup(gamma)


@named
def gradaug(
    n: Count = 2,
    width: Annotated[float, Range(0, 0.999999, above=True)] = 0.8,
    mu: NonNegative = 1.75,
    scales: tuple[Positive, ...] = (1.0, 0.875, 0.75, 0.625),
) -> Algorithm:
    """FedAvg with narrower copies of the model learning from the whole. Yang et al., 2020, in FedAlign's study."""
    return fedavg() + Gradaug(n, width, mu, scales)


@named
def fedalign(width: Annotated[float, Range(0, 0.999999, above=True)] = 0.25, mu: NonNegative = 0.45) -> Algorithm:
    """FedAvg with a last stage that stretches its input alike at two widths. Mendieta et al., 2022."""
    return fedavg() + Align(width, mu)


@named
def fedsam(rho: NonNegative = 0.1) -> Algorithm:
    """FedAvg with sharpness-aware local steps. Qu et al., 2022."""
    return fedavg() + Perturb(rho=rho)


@named
def fedasam(rho: NonNegative = 1.0, eta: NonNegative = 0.0, scaled: Literal["all", "weights"] = "all") -> Algorithm:
    """FedSAM with a perturbation in proportion to each weight. Caldarola et al., 2022; eta = 0.2 on `weights` only are theirs."""
    return fedavg() + Perturb(rho=rho, adaptive="weight", eta=eta, scaled=scaled)


@named
def fedsol(
    rho: NonNegative = 2.0,
    tau: Positive = 3.0,
    on: On = "head",
    adaptive: bool = True,
    scale: Literal["rows", "layer"] = "rows",
    by: Part | None = None,
    floor: NonNegative = 1e-6,
) -> Algorithm:
    """Local gradients taken where they do not undo a proximal loss: perturbed along that loss's gradient. Lee et al., 2024.

    `floor` acts only without `adaptive`: it keeps the first step of a round from going rho in a random direction. `by=normalise` goes
    along FedNova's mean direction less the client's own, which is `normalise(variate=moving)`.
    """
    if isinstance(by, Normalise) and by.variate == "none":
        by = replace(by, variate="moving")
    drift: Literal["drift", "drift-tensor"] = "drift" if scale == "rows" else "drift-tensor"
    fixed = Perturb(by or Distil(tau=tau), rho, on, floor=floor)
    return fedavg() + (replace(fixed, adaptive=drift, floor=0.0) if adaptive else fixed)


def _uphill(rho: float, on: On) -> Perturb:
    return Perturb(Distil(), rho, on, "drift")


@named
def fedsol_a0() -> Algorithm:
    """Row A0 of FedSOL's Appendix H: the task's gradient at w, that is FedAvg."""
    return fedavg()


@named
def fedsol_a1(rho: NonNegative = 2.0, on: On = "head") -> Algorithm:
    """Row A1 of FedSOL's Appendix H: the task's gradient at w + e, that is FedSOL."""
    return fedavg() + _uphill(rho, on)


@named
def fedsol_a2(rho: NonNegative = 2.0, beta: NonNegative = 1.0, on: On = "head") -> Algorithm:
    """Row A2 of FedSOL's Appendix H: the task's gradient at w, and beta times the proximal one at w + e."""
    return fedavg() + Beside(Together((Distil(), _uphill(rho, on))), beta)


@named
def fedsol_a3(rho: NonNegative = 2.0, beta: NonNegative = 1.0, on: On = "head") -> Algorithm:
    """Row A3 of FedSOL's Appendix H: both gradients at w + e, the proximal one times beta."""
    return fedavg() + Distil(beta) + _uphill(rho, on)


@named
def fedsol_a4(rho: NonNegative = 2.0, beta: NonNegative = 1.0, on: On = "head") -> Algorithm:
    """Row A4 of FedSOL's Appendix H: both gradients at w + e with e along their sum, the proximal one times beta."""
    return fedavg() + Distil(beta) + replace(_uphill(rho, on), by=Together((Task(), Distil())))


@named
def fedsol_a5() -> Algorithm:
    """Row A5 of FedSOL's Appendix H: the sum of the task's and the proximal gradient at w."""
    return fedavg() + Distil()


@named
def fedsol_a6(rho: NonNegative = 2.0, beta: NonNegative = 1.0, on: On = "head") -> Algorithm:
    """Row A6 of FedSOL's Appendix H: the task's gradient at w + e, and beta times the proximal one at w."""
    return fedavg() + _uphill(rho, on) + Beside(Distil(), beta)


@named
def projection(by: Part | None = None) -> Algorithm:
    """FedAvg with what works against a proximal loss taken out of each gradient: equation 3 of FedSOL. Lee et al., 2024."""
    return fedavg() + Project(by or Distil())


@named
def fedconst() -> Algorithm:
    """FedAvg under convex constraints on the local update. FedCONST: Kim et al., 2025."""
    return fedavg() + Constrain()


@named
def fedavgm(beta: Annotated[float, Range(0, 1)] = 0.7, form: Literal["heavy", "damped", "nesterov"] = "heavy") -> Algorithm:
    """FedAvg with momentum on the server. Hsu et al., 2019."""
    return fedavg() + Inertia(beta, form)


@named
def fedadam(lr: Positive = 0.1, beta1: Fraction = 0.9, beta2: Fraction = 0.99, tau: Positive = 0.001, corrected: bool = False) -> Algorithm:
    """FedAvg with Adam on the server. Reddi et al., 2021, who correct no bias."""
    return fedavg() + Adapt("adam", lr, beta1, beta2, tau, corrected)


@named
def fedyogi(lr: Positive = 0.1, beta1: Fraction = 0.9, beta2: Fraction = 0.99, tau: Positive = 0.001) -> Algorithm:
    """FedAvg with Yogi on the server. Reddi et al., 2021."""
    return fedavg() + Adapt("yogi", lr, beta1, beta2, tau)


@named
def fedadagrad(lr: Positive = 0.1, beta1: Fraction = 0.0, tau: Positive = 0.001) -> Algorithm:
    """FedAvg with Adagrad on the server. Reddi et al., 2021."""
    return fedavg() + Adapt("adagrad", lr, beta1, tau=tau)


@named
def adabest(mu: NonNegative = 0.1, beta: NonNegative = 0.85) -> Algorithm:
    """FedAvg with estimates of the clients' biases that fade with age. Varno et al., 2022."""
    return fedavg("uniform") + Debias(mu, beta)


@named
def fedmrur() -> Algorithm:
    """FedSAM with the server's step as long as the clients' are: only that much of FedMRUR. An et al., 2023."""
    return fedsam() + Renormalise()


@named
def fedoptz(
    alpha: NonNegative = 0.2, constraint: Literal["weighted", "plain"] = "weighted", means: Literal["samples", "batches"] = "samples"
) -> Algorithm:
    """FedAvg and a corrective step along the clients' gradients, weighted so that no client's loss need suffer. Mousazadeh et al., 2023."""
    return fedavg("uniform") + Corrective(alpha, constraint, means)


@named
def fedsr(l2r: NonNegative = 0.01, cmi: NonNegative = 0.001, trained: bool = True) -> Algorithm:
    """FedAvg of simple stochastic representations; needs a model such as `stochastic`. Nguyen et al., 2022."""
    return fedavg("uniform") + Represent(l2r, cmi, trained)


@named
def centralised() -> Algorithm:
    """The same model on all the data in one place, with nothing sent: the upper bound. A round is one local round on everything."""
    return fedavg() + Gather() + SGD(persist=True)


@named
def local_only() -> Algorithm:
    """No federation: every client trains and predicts by itself."""
    return fedavg() + Alone() + Own()


@named
def perfedavg(beta: Positive = 0.01, epochs: Count = 1) -> Algorithm:
    """FedAvg of models that fine-tune well. Fallah et al., 2020."""
    return fedavg() + Meta(beta) + Finetune(epochs, plain=False)


@named
def fedbabu(epochs: Count = 5) -> Algorithm:
    """FedAvg of bodies around one random head, and fine-tuning of all. Oh et al., 2022."""
    return fedavg() + Hold("head") + Finetune(epochs)


@named
def knnper(
    k: Count = 5, weight: Fraction = 0.5, mix: Literal["logits", "probs"] = "logits", epochs: Annotated[int, Range(0)] = 1
) -> Algorithm:
    """FedAvg beside a vote of each client's nearest own samples. Marfoq et al., 2022."""
    return fedavg() + KnnPer(k, weight, mix, epochs=epochs)
