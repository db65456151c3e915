"""Install the built wheel into a new environment, away from the sources, and use it.

    python tools/check_package.py dist [--system-site-packages]

The new environment installs the dependencies at the versions of constraints.txt; with
`--system-site-packages` it takes those of the environment that runs this script instead, which is
quicker and tests the content of the wheel only. The sdist is unpacked and compared with the wheel.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("dist", type=Path)
    parser.add_argument("--system-site-packages", action="store_true")
    arguments = parser.parse_args()
    (wheel,) = arguments.dist.glob("*.whl")
    (sdist,) = arguments.dist.glob("*.tar.gz")
    _compare(wheel, sdist)
    with tempfile.TemporaryDirectory() as folder:
        python = _environment(Path(folder), wheel.resolve(), arguments.system_site_packages)
        for line in _use(python, Path(folder)):
            print(line)
    print(f"{wheel.name}: {wheel.stat().st_size / 2**20:.1f} MB, installed and used")


def _compare(wheel: Path, sdist: Path) -> None:
    """Stop unless the sdist has every file of the wheel, and both have the package data."""
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("annocoin/")}
    with tarfile.open(sdist) as archive:
        source = {name.partition("/src/")[2] for name in archive.getnames() if "/src/" in name}
    expected = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / "annocoin").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    for title, names in (("wheel", packed), ("sdist", source)):
        if missing := sorted(expected - names):
            sys.exit(f"{title}: lacks {', '.join(missing)}")


def _environment(folder: Path, wheel: Path, shared: bool) -> str:
    """A new environment with the wheel; gives its interpreter."""
    venv.create(folder / "venv", with_pip=True)
    bin_folder = folder / "venv" / ("Scripts" if sys.platform == "win32" else "bin")
    python = str(bin_folder / "python")
    install = [python, "-m", "pip", "install", "--quiet"]
    if shared:
        sites = [path for path in sys.path if path.endswith("site-packages")]
        query = [python, "-c", "import site; print(site.getsitepackages()[0])"]
        site = Path(subprocess.run(query, check=True, capture_output=True, text=True).stdout[:-1])
        (site / "shared.pth").write_text("\n".join(sites))
        subprocess.run([*install, "--no-deps", str(wheel)], check=True)
    else:
        constraints = str(ROOT / "constraints.txt")
        subprocess.run([*install, "--constraint", constraints, str(wheel)], check=True)
    return python


def _use(python: str, folder: Path) -> list[str]:
    """The output of a few commands, run in an empty folder; stops at the first that fails."""
    lines = []
    commands = [
        ("--version",),
        ("synth", "scenes", "--images", "3", "--size", "64"),
        ("regions", "scenes", "--out", "regions", "--jobs", "1"),
    ]
    where = "import annocoin, sys; sys.exit('site-packages' not in annocoin.__file__)"
    for command in ([python, "-c", where], *([python, "-m", "annocoin", *c] for c in commands)):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}")
        lines += done.stdout.splitlines()
    return lines


if __name__ == "__main__":
    main()
