"""The ``fedqssl`` command: parses arguments, calls the library and prints; nothing is computed here."""
