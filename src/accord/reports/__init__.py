"""What runs left on disk, as statistics, tables, figures and one page."""

from accord.reports.page import write_page
from accord.reports.record import Comparison, Run, load
from accord.reports.statistics import Row, summarise

__all__ = ["Comparison", "Row", "Run", "load", "summarise", "write_page"]
