"""The bundle for machines without internet, with a stand-in for the wheels: what the installer does, and what it refuses."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pip
import pytest

pytestmark = pytest.mark.skipif(os.name == "nt", reason="install.sh is for Linux and macOS")

TOOLS = Path(__file__).parent.parent / "tools" / "bundle"
PROGRAM = "import sys\n\ndef main():\n    print('anomalyncd', VERSION, *sys.argv[1:])\n"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_wheel(folder: Path, version: str, build: str = "", says: str = "") -> Path:
    """A program called anomalyncd that says what it was asked."""
    info = f"anomalyncd-{version}.dist-info"
    content = {
        "anomalyncd.py": PROGRAM.replace("VERSION", repr(says or version)),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: anomalyncd\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\nanomalyncd = anomalyncd:main\n",
    }
    path = folder / f"anomalyncd-{version}{build}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in content.items():
            archive.writestr(name, text)
        archive.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in [*content, f"{info}/RECORD"]))
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle as make_bundle makes it, with a wheel of our own in place of the download."""
    folder = tmp_path_factory.mktemp("stick")
    maker = load("make_bundle")
    weights = folder / "some.safetensors"
    weights.write_bytes(b"weights")
    (folder / "some.safetensors.sha256").write_text("of the hub")

    def collect_wheels(wheels: Path, extras: str) -> list[Path]:
        wheels.mkdir()
        return [write_wheel(wheels, "0.1.0")]

    maker.collect_wheels, maker.fetch = collect_wheels, lambda name, progress: weights
    maker.make_bundle(folder / "bundle", "serve", ["some"])
    return folder / "bundle"


@pytest.fixture
def bundle(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "bundle"))


def reseal(bundle: Path, **facts: object) -> None:
    """Change what bundle.json says, and the checksums with it."""
    path = bundle / "bundle.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **facts}))
    sums = bundle / "SHA256SUMS"
    lines = [line for line in sums.read_text().splitlines() if not line.endswith("  bundle.json")]
    sums.write_text("\n".join([*lines, f"{hashlib.sha256(path.read_bytes()).hexdigest()}  bundle.json"]) + "\n")


def run(bundle: Path, target: Path, *options: str) -> subprocess.CompletedProcess[str]:
    nowhere = "http://127.0.0.1:9"
    environment = {
        **os.environ, "PYTHON": sys.executable, "PIP_INDEX_URL": nowhere, "PIP_TARGET": str(target / "elsewhere"),
        "http_proxy": nowhere, "https_proxy": nowhere, "PYTHONPATH": str(target / "nothing"),
    }  # fmt: skip
    command = ["sh", str(bundle / "install.sh"), "--to", str(target), *options]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def refused(bundle: Path, target: Path) -> str:
    done = run(bundle, target)
    assert done.returncode != 0 and "Traceback" not in done.stderr
    return done.stderr


def test_it_installs_what_was_bundled_and_nothing_else(bundle: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(bundle / "wheels" / "pip-0-py3-none-any.whl", "w") as archive:  # only to be run, not installed
        home = Path(pip.__file__).parent
        for file in home.rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                archive.write(file, f"pip/{file.relative_to(home).as_posix()}")
    write_wheel(bundle / "wheels", "9.9")  # a newer one that lies there but is not on the list
    target = tmp_path / "ziel mit Leerzeichen"
    done = run(bundle, target)
    assert done.returncode == 0, done.stdout + done.stderr
    weights = bundle / "weights" / "some.safetensors"
    assert f"anomalyncd 0.1.0 weights fetch some --from {weights}" in done.stdout
    assert "anomalyncd 0.1.0 --version" in done.stdout and "weights verify some" in done.stdout
    assert "Next: " in done.stdout and not (target / "elsewhere").exists()
    starter, plain = next(target.glob("studio.*")), {"PATH": os.environ["PATH"]}
    started = subprocess.run([starter, "--port", "0"], capture_output=True, text=True, check=True, env=plain)
    assert (
        "anomalyncd 0.1.0 studio --port 0" in started.stdout
    )  # what stands for the program here says how it was called
    write_wheel(bundle / "wheels", "0.1.0", build="-9", says="a forgery")  # which pip prefers, for its build number
    assert "DO NOT MATCH THE HASHES" in refused(bundle, target)
    assert run(bundle, target, "--check").returncode == 0  # what was left unfinished may be made anew


def test_a_damaged_file_is_named_and_nothing_is_installed(bundle: Path, tmp_path: Path) -> None:
    wheel = bundle / "wheels" / "anomalyncd-0.1.0-py3-none-any.whl"
    data = bytearray(wheel.read_bytes())
    data[len(data) // 2] ^= 1
    wheel.write_bytes(data)
    (bundle / "weights" / "some.safetensors").unlink()
    words = refused(bundle, tmp_path / "there")
    assert wheel.name in words and "some.safetensors" in words and "Copy the bundle again" in words
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize("content", ["", "nonsense\n", None])
def test_a_list_of_checksums_that_says_nothing_is_refused(bundle: Path, tmp_path: Path, content: str | None) -> None:
    (bundle / "SHA256SUMS").unlink() if content is None else (bundle / "SHA256SUMS").write_text(content)
    assert "Copy the bundle again" in refused(bundle, tmp_path / "there")


def test_another_python_is_told_by_its_version(bundle: Path, tmp_path: Path) -> None:
    (bundle / "python-version.txt").write_text("3.2\n")
    words = refused(bundle, tmp_path / "there")
    assert "needs Python 3.2" in words and "{}.{}".format(*sys.version_info) in words
    (bundle / "python-version.txt").unlink()
    assert "not copied whole" in refused(bundle, tmp_path / "there")


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"needed_bytes": 10**18}, "not enough room, 1000000000.0 GB needed"),
        ({"system": "Plan9", "machine": "mips"}, "is for Plan9 on mips"),
        ({"glibc": 999}, "glibc 2.999 or newer"),
    ],
)
def test_a_machine_that_does_not_fit_is_told_why(
    bundle: Path, tmp_path: Path, facts: dict[str, object], words: str
) -> None:
    reseal(bundle, **facts)
    assert words in refused(bundle, tmp_path / "there")
    assert not (tmp_path / "there").exists()


def test_a_folder_of_somebody_else_is_left_alone(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "thesis.txt").write_text("years")
    assert "found other files" in refused(bundle, tmp_path / "there")
    assert (tmp_path / "there" / "thesis.txt").read_text() == "years"


def test_every_file_has_a_checksum_that_others_can_read(made: Path) -> None:
    listed = {line.split("  ")[1] for line in (made / "SHA256SUMS").read_text().splitlines()}
    assert listed == {p.relative_to(made).as_posix() for p in made.rglob("*") if p.is_file()} - {"SHA256SUMS"}
    assert {"install.sh", "install.bat", "install.py", "README.txt", "Containerfile"} <= listed
    assert {"weights/some.safetensors", "weights/some.safetensors.sha256"} <= listed
    if checker := shutil.which("sha256sum"):
        subprocess.run([checker, "--check", "--quiet", "SHA256SUMS"], cwd=made, check=True)


def test_a_folder_that_is_no_bundle_is_not_replaced(tmp_path: Path) -> None:
    maker = load("make_bundle")
    (tmp_path / "mine").mkdir()
    with pytest.raises(maker.SettingsError, match="found something else"):
        maker.make_bundle(tmp_path / "mine", "", [])


def test_wheels_tell_the_oldest_system() -> None:
    needed_glibc = load("make_bundle").needed_glibc
    both = "a-1-cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64.whl"
    assert needed_glibc([both, "b-1-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl"]) == 27
    assert needed_glibc(["c-1-py3-none-manylinux2010_x86_64.whl"]) == 12
    assert needed_glibc(["d-1-py3-none-any.whl", "e-1-cp311-cp311-macosx_11_0_arm64.whl"]) is None


def test_the_windows_script_has_the_line_ends_of_windows() -> None:
    data = (TOOLS / "install.bat").read_bytes()
    assert data.count(b"\r\n") == data.count(b"\n") > 10
