"""A run, or a folder of runs, as one self-contained page: ``report.html``."""

from fedqssl.report.finish import finished_report
from fedqssl.report.page import write_report

__all__ = ["finished_report", "write_report"]
