"""Figures of the studies of real heads, each in a file of ``figures/``."""

__all__: list[str] = []
