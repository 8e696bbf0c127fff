"""A part of your own: clients send only the largest entries of their updates, and keep the rest for their next round."""

import argparse

import torch
from torch import Tensor, nn

import accord
from accord import Client, Part, State, named
from accord.check import Fraction


@named
class Sparse(Part):
    """Top-k with error feedback: the largest `share` of w - w0 + e is sent, and e becomes what was not. Stich et al., 2018."""

    share: Fraction = 0.1

    def client_state(self, w: Tensor) -> State:
        return {"e": torch.zeros_like(w)}

    def end(self, client: Client) -> None:
        change = client.w - client.w0 + client.kept[self]["e"]
        smallest = change.abs().topk(max(1, round(self.share * len(change)))).values[-1]
        sent = torch.where(change.abs() >= smallest, change, 0.0)
        client.kept[self] = {"e": change - sent}
        client.w.copy_(client.w0 + sent)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=30)
    chosen = options.parse_args()
    data = accord.federate("digits", "dirichlet(0.3)", 20)
    test = data.test.gather(torch.arange(len(data.test)))
    for recipe in ("fedavg", "fedavg + sparse(share=0.1)", "scaffold + sparse(share=0.1)"):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
        algorithm = accord.read(f"{recipe} + sgd(lr=0.05, epochs=2, batch=20) + uniform(5)")
        *_, last = accord.rounds(algorithm, net, data, rounds=chosen.rounds)
        model = last.server.model(net).eval()
        accuracy = float((model(test.x).argmax(1) == test.y).float().mean())
        # Weights travel as whole vectors here, so the counted bytes do not fall: this is the effect of sparsity, not its saving.
        print(f"{recipe:30} {accuracy:.3f} of the test set after {last.round + 1} rounds")


if __name__ == "__main__":
    main()
