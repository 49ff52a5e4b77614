"""Figures of *equivalence* that plot.py has no room for."""
