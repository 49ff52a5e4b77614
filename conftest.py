"""What pytest leaves alone: modules that need torch, where torch is not installed."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torch") else ["src/bulkedge/nn/*"]
