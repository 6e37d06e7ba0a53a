"""Make .venv for the Makefile: python environment.py [options of python -m venv]."""

import subprocess
import sys
import sysconfig
from pathlib import Path

# In this file, nothing that Python 3.6 can't read: it should see this message, no syntax error.
if sys.version_info < (3, 10):  # noqa: UP036  an older one is what this refuses
    sys.exit(
        "latentkv: Python 3.10 or later is needed, {} is {}.{}: "
        "name another, as in make PYTHON=python3.12".format(sys.executable, *sys.version_info)
    )

try:
    import ensurepip
    import venv
except ImportError as error:
    sys.exit(
        f"latentkv: {sys.executable} can't make a virtual environment ({error}): "
        "install its venv module (on Debian and Ubuntu: apt install python3-venv)"
    )
assert ensurepip and venv


def main():
    options = sys.argv[1:]
    print("latentkv: making .venv with", sys.executable, *options, flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", *options, ".venv"], check=True)
    if "--system-site-packages" in options and sys.prefix != sys.base_prefix:
        # This Python stands in a virtual environment itself; venv looks only below that one.
        site_packages = next(Path(".venv").glob("lib/python3.*/site-packages"))
        (site_packages / "outer.pth").write_text(sysconfig.get_path("purelib") + "\n")


main()
