"""Install a folder's wheel without extras in a fresh environment and try its commands: ``python .ci/smoke.py dist``."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from tempfile import TemporaryDirectory

COMMANDS = (  # each with its exit status and a part of its output
    ("--version", 0, "bulkedge, version {version}\n"),
    ("law attention-law --beta 1 --head-ratio 0.5 --at 1", 0, "1.71828"),  # the mean is e - 1
    ("list", 0, "laws/edge"),
    ("scan", 1, "pip install 'bulkedge[torch]'"),
)


def smoke(wheel: Path, environment: str) -> None:
    """Exit with the output of the first command that does not do what it should."""
    venv.create(environment, with_pip=True)
    scripts = sysconfig.get_path("scripts", "venv", {"base": environment})
    python = shutil.which("python", path=scripts) or sys.exit(f"no Python in {scripts}")
    subprocess.run([python, "-m", "pip", "install", "--quiet", wheel], check=True)
    bulkedge = shutil.which("bulkedge", path=scripts) or sys.exit(f"{wheel.name} installs no command bulkedge")
    for words, status, part in COMMANDS:
        done = subprocess.run(
            [bulkedge, *words.split()], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        expected = part.format(version=wheel.name.split("-")[1])
        if done.returncode != status or expected not in done.stdout:
            sys.exit(
                f"bulkedge {words}: expected status {status} and {expected!r}, got {done.returncode} and\n{done.stdout}"
            )
        print(f"bulkedge {words}: as expected")


if __name__ == "__main__":
    (built,) = Path(sys.argv[1]).glob("*.whl")
    with TemporaryDirectory() as folder:
        smoke(built, folder)
