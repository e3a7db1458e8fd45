"""The report of a run that has just ended: a failure to write it is a line, never the end of the run."""

from __future__ import annotations

from pathlib import Path

from fedqssl.imported import one_line
from fedqssl.reporting.page import write_report


def finished_report(folder: Path) -> str:
    """Write ``report.html`` into a finished run's folder; returns the line to show, with its path or why there is none.

    The run's own code (models, algorithms) is imported: the run has just used it.
    """
    try:
        return f"the report is {write_report(folder, trust=True)}"
    except Exception as error:  # the result is safe in its folder: no fault of a drawing may hide it
        return f"warning: no report was written ({one_line(error, 200)}); try again with: fedqssl report {folder}"


__all__ = ["finished_report"]
