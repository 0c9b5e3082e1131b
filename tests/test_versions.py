"""What is installed: the default brings what the everyday commands need and no more, and versions that were tried."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from scenes import KINDS, write_scenes

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PACKAGES = {  # import → package, where they differ by more than spelling
    "PIL": "pillow", "cv2": "opencv-python-headless", "faiss": "faiss-cpu", "paho": "paho-mqtt",
    "sklearn": "scikit-learn", "yaml": "pyyaml",
}  # fmt: skip
IMPORTS = {package: name for name, package in PACKAGES.items()}
PARTS = {
    "lightning": "anomalib",
    "pydantic-core": "pydantic",
}  # what these are built on, in the versions that they ask for
OF_TIMM = "torchvision"  # an extra names it because it imports it; timm brings it along in every install
spec = importlib.util.spec_from_file_location("versions", ROOT / "tools" / "versions.py")
assert spec and spec.loader
versions = importlib.util.module_from_spec(spec)
spec.loader.exec_module(versions)


def named(requirements: list[str]) -> set[str]:
    return {versions.normal(re.match(r"[\w.-]+", requirement)[0]) for requirement in requirements}


DEFAULT = named(PROJECT["dependencies"])
EXTRAS = {extra: named(them) for extra, them in PROJECT["optional-dependencies"].items() if extra != "dev"}
ABSENT = {IMPORTS.get(name, name.replace("-", "_")) for name in set().union(*EXTRAS.values()) - {OF_TIMM}}


def imported(path: Path) -> Iterator[str]:
    """Packages that a file imports, within functions and by `import_module` too."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [str(node.module)]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            names = [part.value for part in node.args[:1] if isinstance(part, ast.Constant)]
        for name in {name.split(".")[0] for name in names} - sys.stdlib_module_names:
            package = PACKAGES.get(name, versions.normal(name))
            yield PARTS.get(package, package)


def test_every_import_is_named_and_every_name_of_the_default_install_is_imported() -> None:
    found = {package for path in SOURCES for package in imported(path)}
    assert found <= DEFAULT.union(*EXTRAS.values())
    assert found >= DEFAULT


def test_lower_bounds_become_versions() -> None:
    project = {"dependencies": ["A_b>=1.2"], "optional-dependencies": {"x": ["c[d]>=2,!=3"], "y": ["anomalyncd[x]"]}}
    assert versions.oldest(project) == ["a-b==1.2", "c==2"]
    for unclear in ("a", "a<3", "a==1", "a>1"):
        with pytest.raises(SystemExit, match="expected NAME>=VERSION"):
            versions.oldest({"dependencies": [unclear], "optional-dependencies": {}})
    oldest = {line.split("==")[0] for line in versions.oldest(PROJECT)}
    assert oldest == (DEFAULT | named(PROJECT["optional-dependencies"]["dev"])).union(*EXTRAS.values()) - {"anomalyncd"}


def test_tested_versions_hold_on_other_machines() -> None:
    installed = [
        ("torch", "2.15.0+cu130"),
        ("Ab.C_d", "1"),
        ("nvidia-nccl-cu13", "2"),
        ("cuda-toolkit", "3"),
        ("triton", "4"),
    ]
    assert versions.tested([*installed, ("anomalyncd", "0.1.0")]) == ["ab-c-d==1", "torch==2.15.0"]


def test_the_tested_versions_are_exact_whole_and_within_the_bounds() -> None:
    text = (ROOT / "constraints.txt").read_text("utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert lines and all(re.fullmatch(r"[a-z0-9-]+==[0-9][\w.]*", line) for line in lines)
    tested = dict(line.split("==") for line in lines)
    oldest = dict(line.split("==") for line in versions.oldest(PROJECT))
    assert tested.keys() >= oldest.keys() | {"pip"}
    older = [name for name, bound in oldest.items() if numbers(tested[name]) < numbers(bound)]
    assert not older


def numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


def test_everything_that_installs_takes_the_tested_versions() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    stamp = makefile[makefile.index("$(STAMP): pyproject.toml constraints.txt") :].split("\n\n")[0]
    installs = [line for line in stamp.splitlines() if "$(PIP)" in line]
    assert len(installs) == 2 and all("$(TESTED)" in line for line in installs)
    assert "constraints.txt" in (ROOT / "tools" / "bundle" / "make_bundle.py").read_text("utf-8")


EVERY_DAY = """
import sys
from importlib.machinery import PathFinder
from pathlib import Path

absent, find = sys.argv[2].split(","), PathFinder.find_spec  # as if they were not installed
PathFinder.find_spec = lambda name, *rest: None if name.split(".")[0] in absent else find(name, *rest)
from starlette.testclient import TestClient
from command import call, fail
from anomalyncd.review.app import make_app

data, run = Path(sys.argv[1]), Path(sys.argv[1]) / "run"
call("discover", data / "images", "--maps", data / "maps", "--classes", 4, "--backbone", "tiny", "--out", run)
call("predict", run, data / "images", "--maps", data / "maps", "--out", data / "new.csv")
call("export", run, "--format", "coco")
with TestClient(make_app(run), base_url="http://127.0.0.1") as client:
    assert client.get("/").status_code == client.get("/api/state").status_code == 200
predict = ["predict", run, data / "images", "--maps", data / "maps"]
print(fail("serve", run))
print(fail(*predict, "--out", data / "new.parquet"))
print(fail(*predict, "--engine", "ray", "--out", data / "new.csv"))
print(fail("export", run, "--format", "onnx"))
print(fail("export", run, "--format", "xlsx"))
watched = ["watch", run, data / "images", "--maps", data / "maps", "--out", data / "grows.csv"]
print(fail(*watched, "--mqtt", "mqtt://127.0.0.1/line", "--once"))
print(fail("discover", data / "images", "--detector", "anomalib:Padim", "--normal", data / "images", "--out", data / "r"))
"""


def test_the_default_install_does_the_everyday_work_and_says_what_the_rest_needs(tmp_path: Path) -> None:
    data = write_scenes(tmp_path, KINDS, seed=0)
    command = [sys.executable, "-c", EVERY_DAY, str(data), ",".join(sorted(ABSENT))]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT / "tests")
    assert done.returncode == 0, done.stderr
    answers = done.stdout.strip().splitlines()
    assert len(answers) == 7
    for extra, answer in zip(("serve", "parquet", "ray", "export", "xlsx", "mqtt", "anomalib"), answers, strict=True):
        assert f"pip install 'anomalyncd[{extra}]'" in answer
