"""The explorer: a course of chapters and rooms in a browser, where a reader moves a parameter and watches theory.

``bulkedge explore`` serves it, :func:`bulkedge.lab.explore.app.serve` does the same from Python. Rooms and
chapters need no browser: they are declared in :mod:`bulkedge.lab.explore.rooms` and
:mod:`bulkedge.lab.explore.course`, and compute without Dash.

>>> from bulkedge.lab.explore.rooms import HeadsRoom
>>> room, problems = HeadsRoom.read("beta=1.2&tokens=a")
>>> room.beta, room.tokens, problems
(1.2, 512, ["tokens = 'a' is outside its domain {256, 512, 1024, 2048, 4096, 16384}"])
"""
