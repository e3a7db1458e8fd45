"""Runs on real machines: a folder of keys and settings, a server that hosts Flower's SuperLink, clients that keep their data.

``fleet`` is the folder, ``scaffold`` makes it and ``keys`` what is secret in it; ``superlink``, ``guard`` and ``supervisor`` are
the server's process, ``server_app`` and ``fleet_run`` the run that it starts, ``watching`` whom that is waiting for; ``node`` is
a client's process, ``connection`` and ``heart`` its way to the server, ``limits`` what it may use, ``client_role`` its data and
``store`` its state; ``control`` starts and stops; ``status``, ``metrics`` and ``page`` show. ``flower_app`` is the other way, on
Flower's documented modules alone. What travels, and how, is :mod:`fedqssl.engines.flower`.
"""
