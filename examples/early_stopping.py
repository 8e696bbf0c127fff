"""The loop as in a notebook: watch validation data of the clients, stop early, keep the best weights, test once."""

import argparse
import copy

import torch
from torch import nn

import accord
from accord.data import Batch


def score(model: nn.Module, batch: Batch) -> float:
    """The share of a batch that a model gets right."""
    with torch.no_grad():
        return float((model.eval()(batch.x).argmax(1) == batch.y).float().mean())


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=100, help="at most")
    options.add_argument("--patience", type=int, default=8, help="rounds without a better validation accuracy")
    chosen = options.parse_args()

    data = accord.federate("digits", "dirichlet(0.1)", 20, local_test=0.1)
    validation = data.own.gather(data.tests.order)
    test = data.test.gather(torch.arange(len(data.test)))

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 10))
    algorithm = accord.scaffold() + accord.constrain() + accord.sgd(lr=0.02, epochs=3, batch=20) + accord.uniform(5)

    best, kept, since = 0.0, net, 0
    for cohort in accord.rounds(algorithm, net, data, rounds=chosen.rounds):
        model = cohort.server.model(net)
        found = score(model, validation)
        print(f"round {cohort.round + 1:3}: loss {cohort.loss:.3f}, validation {found:.3f}, {len(cohort.accepted)} clients")
        if found > best:
            best, kept, since = found, copy.deepcopy(model), 0
        else:
            since += 1
        if since == chosen.patience:
            break
    print(f"best validation {best:.3f}; {score(kept, test):.3f} of the test set")


if __name__ == "__main__":
    main()
