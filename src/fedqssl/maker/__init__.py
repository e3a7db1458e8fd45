"""Makes device files: a finished run (or a client of a fleet) -> probe -> card -> the file that a device loads.

Start reading in ``personal``; ``probing`` fits and judges classifiers, ``finished_run`` opens runs.
"""
