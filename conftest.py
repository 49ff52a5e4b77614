"""What pytest leaves alone: modules that need torch or Triton, where those are not installed."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torch") else ["src/bulkedge/nn/*"]
if not find_spec("triton"):
    collect_ignore_glob.append("src/bulkedge/nn/kernels.py")
