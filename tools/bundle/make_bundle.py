"""Collect wheels, weights and installers into one folder that installs anomalyncd where there is no network.

The wheels are for this system and this Python, in the versions of constraints.txt: those that the tests ran with. The
folder is made under another name and renamed when it is whole.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

from anomalyncd import __version__
from anomalyncd.errors import AnomalyNCDError, SettingsError
from anomalyncd.model.registry import EMBEDDED
from anomalyncd.model.weights import fetch

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TESTED = ROOT / "constraints.txt"
CARRIED = (HERE / "install.sh", HERE / "install.bat", HERE / "install.py", HERE / "README.txt", ROOT / "Containerfile")
FACTS, PYTHON_VERSION, REQUIREMENTS, SUMS = "bundle.json", "python-version.txt", "requirements.txt", "SHA256SUMS"
LEGACY_GLIBC = {"manylinux1": 5, "manylinux2010": 12, "manylinux2014": 17}
ROOM_FOR_CACHES = 300_000_000  # compiled functions of numba, fonts of matplotlib


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "bundle", help="the folder (default: %(default)s)")
    parser.add_argument("--extras", default="serve,export,parquet", help="of pyproject.toml (default: %(default)s)")
    parser.add_argument("--weights", default=EMBEDDED, help="names of `anomalyncd weights list` (default: %(default)s)")
    args = parser.parse_args()
    try:
        make_bundle(args.out, args.extras, args.weights.split(","))
    except (AnomalyNCDError, OSError) as error:
        raise SystemExit(f"error: {error}") from None


def make_bundle(out: Path, extras: str, weights: Sequence[str]) -> None:
    """Make the folder `out`, in place of an earlier bundle there."""
    if out.exists() and not (out / FACTS).is_file():
        raise SettingsError(f"{out}: expected no such folder, or an earlier bundle, found something else.")
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    (partial / "weights").mkdir(parents=True)
    for name in weights:
        path = fetch(name, progress=print)
        for file in path.parent.glob(f"{path.name}*"):  # weights of the hub have their hash beside them
            shutil.copy2(file, partial / "weights")
    wheels = collect_wheels(partial / "wheels", extras)
    for file in CARRIED:
        shutil.copy2(file, partial)
    (partial / PYTHON_VERSION).write_text("{}.{}\n".format(*sys.version_info), encoding="ascii")
    (partial / REQUIREMENTS).write_text(requirements(wheels), encoding="ascii")
    needed = sum(map(installed_bytes, wheels)) + ROOM_FOR_CACHES
    facts = {
        "anomalyncd": __version__,
        "extras": extras,
        "system": platform.system(),
        "machine": platform.machine(),
        "glibc": needed_glibc([wheel.name for wheel in wheels]),
        "needed_bytes": needed,
        "weights": list(weights),
    }
    (partial / FACTS).write_text(json.dumps(facts, indent=1) + "\n", encoding="ascii")
    files = sorted(path for path in partial.rglob("*") if path.is_file())
    sums = "".join(f"{sha256(path)}  {path.relative_to(partial).as_posix()}\n" for path in files)
    (partial / SUMS).write_text(sums, encoding="utf-8", newline="\n")
    size = sum(path.stat().st_size for path in files)
    if out.exists():
        shutil.rmtree(out)
    partial.rename(out)
    print(f"{out}: {len(wheels)} wheels and {', '.join(weights)}, {size / 1e9:.1f} GB for {platform.platform()}, Python "
          f"{platform.python_version()}; {needed / 1e9:.1f} GB when installed.")  # fmt: skip
    print(f"SHA-256 of {SUMS}, to be told by another way than the stick:\n  {sha256(out / SUMS)}")
    print("Next: carry the folder there and run `sh install.sh`, on Windows `install.bat`. See docs/offline.md.")


def collect_wheels(folder: Path, extras: str) -> list[Path]:
    """The package, pip and all that they need, as wheels; nothing is built but the package itself."""
    pip = [sys.executable, "-m", "pip"]
    package = f"{ROOT}[{extras}]" if extras else str(ROOT)
    tested = ["--constraint", str(TESTED), "--build-constraint", str(TESTED)]
    options = ["--only-binary", ":all:", "--no-input", "--wheel-dir", str(folder), *tested]
    result = subprocess.run([*pip, "wheel", "--progress-bar", "off", "--quiet", *options, package, "pip"])
    if result.returncode:
        raise SettingsError("pip could not collect the wheels: see above. A bundle is made where a package index is.")
    return sorted(folder.glob("*.whl"))


def requirements(wheels: Sequence[Path]) -> str:
    """Every wheel by version and content, as `pip install --require-hashes` takes it."""
    lines = []
    for wheel in wheels:
        name, version = wheel.name.split("-")[:2]
        lines.append(f"{name}=={version} --hash=sha256:{sha256(wheel)}\n")
    return "".join(lines)


def needed_glibc(names: Sequence[str]) -> int | None:
    """The N of the oldest glibc 2.N that all wheels run on; None where no wheel asks for one.

    >>> needed_glibc(["a-1-cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64.whl", "b-1-py3-none-any.whl"])
    17
    """
    needs = []
    for name in names:
        legacy = [glibc for tag, glibc in LEGACY_GLIBC.items() if f"{tag}_" in name]
        if found := [int(minor) for minor in re.findall(r"manylinux_2_(\d+)_", name)] + legacy:
            needs.append(min(found))
    return max(needs, default=None)


def installed_bytes(wheel: Path) -> int:
    """Files of a wheel unpacked; Python files twice, for their compiled form."""
    with zipfile.ZipFile(wheel) as content:
        return sum(info.file_size * (2 if info.filename.endswith(".py") else 1) for info in content.infolist())


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


if __name__ == "__main__":
    main()
