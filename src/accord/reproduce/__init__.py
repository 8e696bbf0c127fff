"""The papers' tables and figures, as experiments that anyone can run again."""

from accord.reproduce.counted import Passes
from accord.reproduce.measures import Measure
from accord.reproduce.outcome import Outcome, outcomes
from accord.reproduce.play import Plan, plan, play
from accord.reproduce.study import Cell, Study, load, places

__all__ = ["Cell", "Measure", "Outcome", "Passes", "Plan", "Study", "load", "outcomes", "places", "plan", "play"]
