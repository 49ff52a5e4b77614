"""Errors and warnings of the package: each says what was given, what was expected and the remedy.

Every error is also one of Python's own kinds, so that ``except ValueError`` works as people expect. The command line
shows these without a traceback; any other exception is a fault of the package, and keeps its own.

>>> issubclass(DomainError, ValueError), issubclass(UnresolvedError, ArithmeticError)
(True, True)
"""

from __future__ import annotations

from importlib.util import find_spec


class BulkedgeError(Exception):
    """Base of the errors below."""


class DomainError(BulkedgeError, ValueError):
    """A value that a function or a model is not defined for; the message names it, its domain and the remedy."""


class UnitError(DomainError):
    """Values of different units, such as eigenvalues beside squared singular values, that do not convert exactly."""


class UnresolvedError(BulkedgeError, ArithmeticError):
    """A computation that did not reach its tolerance: no number is returned in place of the right one."""


class MissingPackageError(BulkedgeError, ModuleNotFoundError):
    """An optional package is needed and not installed: ``name``; the message has the command that installs it."""


class StoreError(BulkedgeError, RuntimeError):
    """A folder of results that cannot be used as it is; the message says what is wrong with it and what to do."""


class RegimeWarning(UserWarning):
    """A formula outside the regime in which it is known to hold: the number may be far off."""


class AccuracyWarning(UserWarning):
    """An estimate that is less accurate than was asked for."""


def need(what: str, *packages: str, install: str = "'bulkedge[torch]'") -> None:
    """Raise a MissingPackageError unless these packages are installed; nothing is imported."""
    missing = [each for each in packages if find_spec(each) is None]
    if missing:
        raise MissingPackageError(f"{what} needs {' and '.join(missing)}: pip install {install}", name=missing[0])
