"""The version that is installed, which is that of the tag it was built from."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("bulkedge")
except PackageNotFoundError:  # a source tree on the path
    __version__ = "0+unknown"
