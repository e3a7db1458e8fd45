"""Real machines: one folder of keys and settings, a server that hosts Flower's SuperLink, clients that keep their own data.

``fleet`` is the folder, ``keys`` makes what is in it; ``superlink``, ``guard`` and ``steward`` are the server's process,
``server_app`` the run that it starts; ``node`` is a client's process, ``local`` its data and state; ``control`` starts,
stops and shows. What travels, and how, is :mod:`fedqssl.engines.flower`.
"""
