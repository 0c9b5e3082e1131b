"""Install anomalyncd from the folder that this file lies in: check it, make an environment, fill it, try it.

Called by install.sh and install.bat. Uses the standard library only, and no network.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
MARK = "anomalyncd-bundle.json"  # tells an environment of ours, which may be made anew, from any other folder
AGAIN = "Copy the bundle again, or make it again with `make bundle`."


class Trouble(Exception):
    """Something that the user can mend."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Install anomalyncd without a network.")
    parser.add_argument("--to", type=Path, default=Path.home() / "anomalyncd", help="folder (default: %(default)s)")
    parser.add_argument("--check", action="store_true", help="check the bundle and this machine, install nothing")
    args = parser.parse_args()
    args.to = args.to.expanduser().absolute()
    try:
        facts = check_bundle()
        check_machine(facts)
        check_target(args.to, facts["needed_bytes"])
        if args.check:
            say("The bundle is whole and fits this machine.")
        else:
            install(args.to, facts)
    except KeyboardInterrupt:
        raise SystemExit("stopped. Run the same command again.") from None
    except Trouble as trouble:
        raise SystemExit(f"error: {trouble}") from None
    except OSError as error:
        raise SystemExit(f"error: {error}. Mend that and run the same command again.") from None


def check_bundle() -> dict[str, Any]:
    """Compare every file with SHA256SUMS; returns what bundle.json says."""
    try:
        lines = (HERE / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
        expected = {name: digest for digest, name in (line.split("  ", 1) for line in lines)}
    except (OSError, ValueError) as error:
        raise Trouble(f"{HERE / 'SHA256SUMS'}: expected the list of checksums ({error}). {AGAIN}") from None
    say(f"Checking {len(expected)} files ...")
    damaged = [name for name, digest in expected.items() if sha256(HERE / name) != digest]
    if damaged or "bundle.json" not in expected:
        raise Trouble(f"missing or damaged: {', '.join(damaged or ['bundle.json'])}. Nothing was installed. {AGAIN}")
    facts: dict[str, Any] = json.loads((HERE / "bundle.json").read_text(encoding="ascii"))
    return facts


def sha256(path: Path) -> str | None:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            for chunk in iter(lambda: file.read(1 << 20), b""):
                digest.update(chunk)
    except OSError:
        return None
    return digest.hexdigest()


def check_machine(facts: dict[str, Any]) -> None:
    """Wheels are for one Python, one system, one kind of processor, and a C library that is new enough."""
    wanted = (HERE / "python-version.txt").read_text(encoding="ascii").strip()
    here = "{}.{}".format(*sys.version_info)
    if here != wanted or platform.python_implementation() != "CPython":
        raise Trouble(f"this bundle needs CPython {wanted}, but this is {platform.python_implementation()} {here}.")
    there, this = (facts["system"], facts["machine"]), (platform.system(), platform.machine())
    if there != this:
        raise Trouble(f"this bundle is for {' on '.join(there)}, but this machine is {' on '.join(this)}.")
    library, version = platform.libc_ver()
    if facts["glibc"] is not None and (library != "glibc" or int(version.split(".")[1]) < facts["glibc"]):
        raise Trouble(
            f"this bundle needs glibc 2.{facts['glibc']} or newer, but this machine has {library or 'no glibc'} {version}."
        )


def check_target(target: Path, needed: int) -> None:
    if target.exists() and (not target.is_dir() or (any(target.iterdir()) and not (target / MARK).exists())):
        raise Trouble(f"{target}: expected an empty folder or an earlier install, found other files. Choose with --to.")
    parent = next(folder for folder in [target, *target.parents] if folder.is_dir())
    earlier = sum(file.lstat().st_size for file in target.rglob("*")) if (target / MARK).exists() else 0
    free = shutil.disk_usage(parent).free + earlier
    if free < needed:
        raise Trouble(
            f"{target}: not enough room, {needed / 1e9:.1f} GB needed, {free / 1e9:.1f} GB free. Make room, or choose "
            "another disk with --to."
        )


def install(target: Path, facts: dict[str, Any]) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
    environment["PIP_NO_INDEX"] = "1"
    bin_folder = target / ("Scripts" if os.name == "nt" else "bin")
    ending = ".exe" if os.name == "nt" else ""
    python, program = bin_folder / f"python{ending}", bin_folder / f"anomalyncd{ending}"

    def run(*command: str | Path) -> None:
        if subprocess.call([str(part) for part in command], env=environment) != 0:
            raise Trouble(f"{Path(command[0]).name} {' '.join(map(str, command[1:4]))} ... failed, see above.")

    say(f"Making {target} ...")
    # Without pip: some systems lack the part of Python that would install it. The bundle brings its own.
    run(sys.executable, "-I", "-m", "venv", "--without-pip", "--clear", target)
    shutil.copy(HERE / "bundle.json", target / MARK)
    pip = next((HERE / "wheels").glob("pip-*.whl")) / "pip"
    say("Installing, which takes some minutes ...")
    run(
        python, pip, "--isolated", "install", "--quiet", "--no-index", "--find-links", HERE / "wheels", "--no-cache-dir",
        "--only-binary", ":all:", "--require-hashes", "--requirement", HERE / "requirements.txt",
    )  # fmt: skip
    for name in facts["weights"]:
        run(program, "weights", "fetch", name, "--from", HERE / "weights" / f"{name}.safetensors")
    say("Trying it ...")
    run(program, "--version")
    run(program, "weights", "list")
    for name in facts["weights"]:
        run(program, "weights", "verify", name)
    say(f"Done, without a network. Next: {program} demo --out demo-run")
    say(f"  or, in a browser: open {make_starter(target)}")
    say(f"To type `anomalyncd` alone, put {bin_folder} on your PATH.")


def make_starter(target: Path) -> Path:
    """A file to double-click that opens the studio."""
    if os.name == "nt":
        starter = target / "studio.bat"
        content = '@echo off\r\n"%~dp0Scripts\\anomalyncd.exe" studio %*\r\nif errorlevel 1 pause\r\n'
    else:
        starter = target / ("studio.command" if sys.platform == "darwin" else "studio.sh")
        content = '#!/bin/sh\nexec "$(dirname "$0")/bin/anomalyncd" studio "$@"\n'
    starter.write_bytes(content.encode())
    starter.chmod(0o755)
    return starter


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
