"""Parts of the figures of *recovery*, which ``plot.py`` puts together."""
