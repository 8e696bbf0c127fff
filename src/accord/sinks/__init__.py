"""Places beside a run's own records that its numbers are also written to, by name: nothing of it leaves the machine."""

from accord.sinks.numbers import numbers
from accord.sinks.sink import NAMES, Notes, Sink, Sinks, open_sink, opened, require

__all__ = ["NAMES", "Notes", "Sink", "Sinks", "numbers", "open_sink", "opened", "require"]
