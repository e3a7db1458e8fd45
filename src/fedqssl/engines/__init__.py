"""Engines move bytes between the two roles; no algorithm inside."""
