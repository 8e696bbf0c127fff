"""Worker processes: hired with a pipe each, noticed when they die, dismissed at the end."""

from __future__ import annotations

import os
import pickle
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.multiprocessing as mp

from accord.pieces import Pieces

DEATHS = 3  # workers that one task may take with it before it is given up


class Lost(RuntimeError):
    """Workers died again and again over one task."""


@dataclass(eq=False)
class Hand:
    """A worker process and this side's end of its pipe."""

    process: Any
    pipe: Connection

    @property
    def fate(self) -> str:
        """How a dead worker ended."""
        self.process.join()
        return f"exit code {self.process.exitcode}"


def hire(serve: Callable[..., None], *arguments: Any) -> Hand:
    """A new worker that runs `serve(pipe, *arguments)`. It ends by itself when this side's end of the pipe is gone."""
    context = mp.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=_work, args=(Pieces(), serve, theirs, *arguments), daemon=True)
    with _deaf():
        process.start()
    theirs.close()
    return Hand(process, mine)


@contextmanager
def _deaf() -> Iterator[None]:
    """Without Ctrl-C, which a terminal sends to workers too: they inherit this and leave it to us. Ours comes when the block ends."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # which would end the block
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(pieces: None, serve: Callable[..., None], pipe: Connection, *arguments: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    _behind()
    try:
        serve(pipe, *arguments)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def _behind() -> None:
    """Let the server go first when it and this worker want the same core: it has little to do, and others wait for it."""
    if hasattr(os, "SCHED_BATCH"):
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def ready(hands: Iterable[Hand]) -> list[Hand]:
    """Wait until some of these workers have something to say, or are dead."""
    pipes = {hand.pipe: hand for hand in hands}
    return [pipes[pipe] for pipe in wait(list(pipes))]  # type: ignore[index]


def receive(hand: Hand) -> Any:
    """A worker's next message, or None when it is dead."""
    try:
        return hand.pipe.recv()
    except (EOFError, ConnectionResetError):
        return None


def send(hand: Hand, message: Any) -> bool:
    """Send to a worker; False when it is dead."""
    try:
        hand.pipe.send(message)
    except (BrokenPipeError, ConnectionResetError):
        return False
    return True


def dismiss(hands: Iterable[Hand]) -> None:
    """Let workers end; those that do not within five seconds are killed."""
    leaving = list(hands)
    for hand in leaving:
        hand.pipe.close()
    for hand in leaving:
        hand.process.join(timeout=5)
        if hand.process.is_alive():
            hand.process.kill()
            hand.process.join()


def portable(error: Exception) -> Exception:
    """The error as it can travel to another process, with the worker's traceback as a note."""
    trace = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(f"in a worker process:\n{trace}")
    return error
