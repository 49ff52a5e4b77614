"""The numerical engine under the laws.

From the bottom up: an :class:`~bulkedge.laws.engine.measure.edges.Edge` says how a density starts; ``panels`` store a
density between edges; ``continuum`` reads everything off them; ``fixed_point`` and ``curve`` find the density of a law
given by a fixed-point problem; ``pick`` (with ``cusps``) and ``levy`` are the problems with an explicit inverse map,
``subordination`` and ``gaps`` (with ``critical``) those without.
"""
