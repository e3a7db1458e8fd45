"""Measurements of speed and memory against fp32 and against peers; ``fedqssl bench`` prints them.

Each module answers one question and returns a ``records.Record``: ``step`` (CPU time of a training step),
``memory`` (peak, and bytes held for backward), ``codec`` (quantizers and packing against memcpy), ``views``
(images per second). ``demo`` is the job of ``make run``.
"""
