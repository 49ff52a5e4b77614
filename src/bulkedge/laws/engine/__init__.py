"""The numerical engine under the laws.

From the bottom up: ``measure`` holds a resolved density (panels between edges, and everything that is read off them);
``subordination`` finds fixed points in the half-plane, and the support and bulk of a law that is given by them;
``explicit`` has the laws whose inverse map is known; ``profiles`` and ``cavity`` are further problems, and
``masked_equations``, ``window_equations`` and ``masked_density`` those of causal attention and of windows.
"""
