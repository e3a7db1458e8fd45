"""Durable runs: a folder that can be read, resumed and compared; nothing in it is overwritten silently."""

from fedqssl.runs.extend import extend
from fedqssl.runs.folder import RunError, RunFolder
from fedqssl.runs.lifecycle import resume, start
from fedqssl.runs.progress import Progress
from fedqssl.runs.result import ClientResult, RunResult

__all__ = ["ClientResult", "Progress", "RunError", "RunFolder", "RunResult", "extend", "resume", "start"]
