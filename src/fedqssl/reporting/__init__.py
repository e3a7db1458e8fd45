"""A run, or a folder of runs, as one self-contained page: ``report.html``."""

from fedqssl.reporting.finish import finished_report
from fedqssl.reporting.page import write_report

__all__ = ["finished_report", "write_report"]
