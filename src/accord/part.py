"""A part: one idea of an algorithm, as functions around the functions that produce gradients and server steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from torch import Tensor

if TYPE_CHECKING:
    from accord.algorithm import Algorithm
    from accord.client import Batch, Client
    from accord.cohort import Cohort, Reply
    from accord.data.federation import Federation
    from accord.flat import On, Output

State: TypeAlias = Mapping[str, Tensor]
Gradient: TypeAlias = "Callable[[Batch], None]"
Step: TypeAlias = "Callable[[Cohort], Tensor]"


class Part:
    """A frozen idea. Its fields are its constants; what changes lives in `client.kept[part]` and `cohort.state[part]`.

    A part overrides what it needs:

    - `loss` adds a term to the local objective;
    - `gradient` wraps the function that fills `client.g`;
    - `moved` corrects the weights after each step of the local optimiser;
    - `aggregate` wraps the function that makes the server's step;
    - `begin` and `end` frame a client's round.
    """

    kind: ClassVar[str] = "part"
    sends: ClassVar[tuple[str, ...]] = ()  # which entries of the server's state travel down each round
    reads_all: ClassVar[bool] = False  # whether `aggregate` reads every client's delta rather than sums over them
    reveals: ClassVar[str] = ""  # what it sends up that tells of single samples or classes, in words; a real site has to allow it
    stays: ClassVar[bool] = False  # whether the weights have no need to travel, as where each client trains for itself
    name: str

    @property
    def moves(self) -> On:
        """Which of the weights may move; the others have no need to travel."""
        return "all"

    def trains_on(self, federation: Federation) -> Federation:
        """The federation whose clients train; by default the one there is."""
        return federation

    def server_state(self, w: Tensor) -> State:
        """What the server keeps, at the start."""
        return {}

    def client_state(self, w: Tensor) -> State:
        """What a client keeps between its rounds, at the start."""
        return {}

    def begin(self, client: Client) -> None:
        """Prepare the round."""

    def loss(self, client: Client, batch: Batch, out: Output) -> Tensor:
        """A term of the local objective; parts that do not override this have none."""
        return out.logits.new_zeros(())

    def gradient(self, client: Client, batch: Batch, inner: Gradient) -> None:
        """Fill `client.g`; by default with what the parts inside fill it with."""
        inner(batch)

    def moved(self, client: Client) -> None:
        """Correct `client.w` after a step of the local optimiser."""

    def end(self, client: Client) -> None:
        """Set what the client keeps, `client.kept[self] = {...}`, and what it sends up, `client.up[self] = {...}`."""

    def sums(self, reply: Reply) -> Mapping[str, tuple[float, Tensor]]:
        """Weighted tensors of one reply whose sums over the cohort `aggregate` reads as `cohort.sum(self, name)`."""
        return {}

    def aggregate(self, cohort: Cohort, inner: Step) -> Tensor:
        """The step added to the global weights; by default what the parts inside return."""
        return inner(cohort)

    def __add__(self, other: object) -> Algorithm:
        from accord.algorithm import Algorithm

        return Algorithm((self,)) + other

    def has(self, method: str) -> bool:
        """Whether this part overrides a method of `Part`."""
        return getattr(type(self), method) is not getattr(Part, method)
