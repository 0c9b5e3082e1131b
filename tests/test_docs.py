"""What the documentation says must be what the code does."""

import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import yaml

from anomalyncd import AnomalyNCD
from anomalyncd.config import Config, setting_names
from anomalyncd.export import export_run
from command import call
from scenes import KINDS, fit, write_scenes

ROOT = Path(__file__).parent.parent
AT_THE_ROOT = ("README", "SECURITY", "CONTRIBUTING", "CHANGELOG", "CODE_OF_CONDUCT")
PAGES = [*(ROOT / f"{name}.md" for name in AT_THE_ROOT), *sorted((ROOT / "docs").glob("*.md"))]
MADE = ("commands.md", "http.md", "python.md")  # pages of the site that are no files
# Python that stands in the documentation and is run elsewhere, or cannot be run by a test. Beginning → why.
NOT_RUN_HERE = {
    "FrozenKMeans": "a rival as it is in the source, compared by a test below",
    "import base64": "needs a service: tests/serve/test_docs.py runs it",
    "import fiftyone": "needs FiftyOne, which is not among the packages of the tests",
    "import json\nimport urllib": "needs a service: tests/serve/test_docs.py runs it",
    "found = from_anomalib(engine": "needs a trained model of anomalib: tests/test_examples.py runs the whole of it",
    "from anomalyncd.discovery.torchrun": "starts several processes by torchrun: tests/discovery runs the same",
}
# Commands of which the documentation is not run by a test here, and why.
NO_END = ("review", "serve", "studio")  # they serve until somebody stops them; tests of their own run them
ELSEWHERE = {
    "demo": "tests/demo and tests/end_to_end run it", "bench run": "needs real data", "weights": "tests/model run it",
    "--engine ray": "tests/ray run it", "onnx": "tests/export run it", "openvino": "tests/export run it",
    "anomalib:": "tests/adapters run it", "--webhook": "tests/watch run it", "correct": "tests/cli/test_correct.py runs it",
    "s3://": "tests/places run stores in memory, benchmarks/stores.py S3", "…": "not whole", "|": "a choice",
}  # fmt: skip


def tool(name: str) -> ModuleType:
    """A script of tools/site."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / "site" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


reference, hooks = tool("reference"), tool("hooks")


def test_the_page_of_settings_is_made_from_the_settings():
    made = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "settings_table.py")], capture_output=True, check=True, encoding="utf-8",
        env={"PYTHONIOENCODING": "utf-8", "PATH": ""},
    ).stdout  # fmt: skip
    assert (ROOT / "docs" / "settings.md").read_text(encoding="utf-8") == made


def test_the_readme_names_both_commands():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make demo" in text and "make test" in text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_are_there(page):
    text = page.read_text(encoding="utf-8")
    linked = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    code = re.findall(r"(?:src|tests|benchmarks|tools)/[\w/.-]+\.\w+", text)
    modules = re.findall(r"`((?:\w+/)+\w+\.(?:py|j2))", text)
    assert [name for name in linked if not (page.parent / name).exists() and name not in MADE] == []
    assert [name for name in code if not (ROOT / name).exists()] == []
    assert [
        name for name in modules if not any((root / name).exists() for root in (ROOT, ROOT / "src/anomalyncd"))
    ] == []


def test_the_way_of_an_image_leads_through_functions_that_are_there():
    """Hops of docs/architecture.md: `file.py: function` or `file.py: Class.method`."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    hops = re.findall(r"`([\w/]+\.py): ([\w.]+)`", text)
    assert len(hops) > 10
    for file, name in hops:
        source = (ROOT / "src/anomalyncd" / file).read_text(encoding="utf-8")
        for part in name.split("."):
            assert re.search(rf"^ *(?:def|class) {part}\b", source, re.MULTILINE), f"{file}: {name}"


def test_the_page_of_the_bench_shows_the_smallest_rival_as_it_is():
    text = (ROOT / "docs" / "bench.md").read_text(encoding="utf-8")
    rivals = ROOT / "src" / "anomalyncd" / "bench" / "rivals"
    assert f"```python\n{(rivals / 'frozen.py').read_text(encoding='utf-8')}```" in text
    assert "from .frozen import FrozenKMeans" in (rivals / "__init__.py").read_text(encoding="utf-8")
    table = (rivals.parent / "experiments" / "table-01.yaml").read_text(encoding="utf-8")
    assert re.search(r"```yaml\n(  - \{name: \"frozen trunk, k-means\".*\})\n```", text)[1] in table


def blocks(text: str) -> list[str]:
    """Fenced and indented blocks of a page, as they would be typed."""
    fenced = re.findall(r"(?ms)^```\w*\n(.*?)^```$", text)
    rest = re.sub(r"(?ms)^```.*?^```$", "", text)
    return fenced + [
        textwrap.dedent(block).strip("\n") for block in re.findall(r"(?m)(?:^    .*\n|^\n(?=    ))+", rest)
    ]


def commands_of(page: Path) -> list[str]:
    """Lines of its blocks that call the command, without what is said of them."""
    lines = [
        line.strip()
        for block in blocks(page.read_text(encoding="utf-8"))
        for line in block.replace("\\\n", " ").splitlines()
    ]
    return [re.split(r"\s+#|\s{3,}(?!-)", line)[0] for line in lines if line.startswith("anomalyncd ")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_and_option_that_a_page_shows_exists(page: Path) -> None:
    known = dict(reference.commands())
    said = [*commands_of(page), *re.findall(r"`(anomalyncd [a-z][^`]*)`", page.read_text(encoding="utf-8"))]
    for line in said:
        words = shlex.split(line.replace("[", "").replace("]", ""))[1:]
        if not words or words[0].startswith("-"):
            continue
        name = next((" ".join(words[:count]) for count in (2, 1) if " ".join(words[:count]) in known), None)
        group = any(full.startswith(f"{words[0]} ") for full in known) and len(words) == 1
        assert name or group, line
        if name:
            options = {option for parameter in known[name].params for option in parameter.opts} | {"--help"}
            assert {word.split("=")[0] for word in words if word.startswith("--") and word != "--"} <= options, line


def test_every_command_and_setting_is_in_the_reference() -> None:
    page = reference.commands_page()
    names = [name for name, _ in reference.commands()]
    assert len(names) > 15 and all(f"\n## {name}\n" in page for name in names)
    for name, command in reference.commands():
        part = page.split(f"\n## {name}\n")[1].split("\n## ")[0]
        assert all(parameter.opts[-1] in part for parameter in command.params if parameter.opts[0].startswith("-")), (
            name
        )
        assert "| `" in part or not command.params
    settings = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert all(f"| `{name}` |" in settings for name in setting_names()) and Config


def test_every_page_is_in_the_menu_of_the_site_and_nothing_else_is() -> None:
    menu = re.findall(r"[\w-]+\.md", (ROOT / "mkdocs.yml").read_text("utf-8").split("\nnav:")[1])
    made = {"index.md", "security.md", "contributing.md", "changelog.md", "conduct.md", *MADE}
    assert sorted(menu) == sorted({path.name for path in (ROOT / "docs").glob("*.md")} | made)
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))["cff-version"] == "1.2.0"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_the_site_lead_to_its_pages(page: Path) -> None:
    """As `make docs` would find, but without the packages that it needs."""
    there = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*") if path.is_file()}
    there |= {*hooks.PAGES.values(), *MADE}
    text = hooks.fitted(page.read_text(encoding="utf-8"), page.parent)
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text)
    assert set(links) <= there
    assert page.name != "README.md" or len(links) > 20


def test_nothing_of_the_site_is_fetched_from_elsewhere() -> None:
    """The theme's own script is put in its place on pages, and taken from the page of a dead link."""
    page = SimpleNamespace(url="how/serve.html")
    assert hooks.on_post_page(f"<p>{hooks.FOREIGN}", page) == f'<p><script src="../{hooks.WORKER}"></script>'
    assert hooks.on_post_template(f"<p>{hooks.FOREIGN}", template_name="404.html") == "<p>"
    assert "font: false" in (ROOT / "mkdocs.yml").read_text("utf-8")


def test_the_http_reference_has_every_route_and_type() -> None:
    found, page = reference.schemas(), reference.http_page()
    assert {"serve", "review", "studio"} == set(found)
    for schema in found.values():
        assert all(
            f"{method.upper()} {path} " in page for path, methods in schema["paths"].items() for method in methods
        )
        assert all(f"### {name} " in page for name in schema["components"]["schemas"])
    assert set(re.findall(r"\]\(#([\w-]+)\)", page)) <= set(re.findall(r"\{#([\w-]+)\}", page))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all that the pages speak of, small: images, maps, good products, runs."""
    folder = tmp_path_factory.mktemp("docs")
    data = write_scenes(folder / "data", KINDS, seed=0)
    new = write_scenes(folder / "later", KINDS[4:12], seed=1)
    for name, source in (
        ("IMAGES", data / "images"), ("images", data / "images"), ("MAPS", data / "maps"), ("maps", data / "maps"),
        ("NEW_IMAGES", new / "images"), ("FOLDER", new / "images"),
    ):  # fmt: skip
        (folder / name).symlink_to(source, target_is_directory=True)
    write_scenes(folder / "fine", [-1] * 6, seed=2)
    (folder / "GOOD").symlink_to(folder / "fine/images", target_is_directory=True)
    (folder / "FALSE_ALARMS").symlink_to(folder / "fine/images", target_is_directory=True)
    rows = [f"{index:03d}.png,{'good' if kind < 0 else f'kind {kind}'}" for index, kind in enumerate(KINDS)]
    (folder / "labels.csv").write_text("image,label\n" + "\n".join(rows[:20]), encoding="utf-8")
    return folder


@pytest.fixture(autouse=True)
def _small_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """`auto` means a network that needs no weights here."""
    monkeypatch.setattr("anomalyncd.model.registry.EMBEDDED", "tiny")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_of_the_documentation_is_run(
    page: Path, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Block after block of a page in one namespace, which has what the page speaks of."""
    left = [block for block in python_of(page) if not any(start in block for start in NOT_RUN_HERE)]
    if not left:
        return
    here = tmp_path / "here"
    here.mkdir()
    for path in place.iterdir():
        (here / path.name).symlink_to(path)
    monkeypatch.chdir(here)
    if "RUN" in "".join(left):
        fit(place / "data", here / "RUN", "maps")
        export_run(here / "RUN", "coco")
    given = [sorted(Path(name).iterdir()) for name in ("images", "maps", "later/images", "later/maps")]
    names: dict[str, object] = dict(zip(("images", "maps", "new_images", "new_maps"), given, strict=True))
    names["AnomalyNCD"] = AnomalyNCD
    for block in left:
        exec(compile(block, page.name, "exec"), names)


def python_of(page: Path) -> list[str]:
    """Blocks of Python: those that are called so, and indented ones that import something first."""
    text = page.read_text(encoding="utf-8")
    called = re.findall(r"(?ms)^```python\n(.*?)^```$", text)
    return called + [block for block in blocks(text) if re.match(r"(from|import) \w", block) and block not in called]


def test_what_is_not_run_is_counted() -> None:
    every = [block for page in PAGES for block in python_of(page)]
    waiting = {start: [block for block in every if start in block] for start in NOT_RUN_HERE}
    assert all(waiting.values()), "a reason without a block"
    left_out = sum(any(start in block for start in NOT_RUN_HERE) for block in every)
    assert len(every) - left_out >= 8


LINES = sorted({line.replace("[", "").replace("]", "") for page in PAGES for line in commands_of(page)})
RUN_HERE = [
    line for line in LINES if line.split()[1] not in NO_END and not any(mark in line for mark in ELSEWHERE)
]  # fmt: skip


def test_commands_of_the_documentation_are_run(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each as it stands, in a folder that has what it names; a run for each, so that their order says nothing."""
    monkeypatch.chdir(place)
    small = ["--set", "detect.settings.size=64", "--set", "detect.settings.map_size=64", "--set", "features.views=1"]
    base = place / "finished"
    call("discover", "IMAGES", "--normal", "GOOD", "--classes", 4, "--out", base, *small, "--quiet")
    AnomalyNCD.load(shutil.copytree(base, "REVIEWED_RUN")).correct(names={1: "dent"})
    for name in ("LABELLED/kind", "LABELLED/other"):
        Path(name).mkdir(parents=True, exist_ok=True)
    for index, kind in ((8, "kind"), (9, "kind"), (14, "other"), (15, "other")):
        Path(f"LABELLED/{kind}/{index:03d}.png").symlink_to(place / f"data/images/{index:03d}.png")
    done = 0
    for line in sorted(RUN_HERE, key=lambda line: line.split()[1] == "day"):  # which reads what watch has written
        shutil.rmtree("RUN", ignore_errors=True)
        shutil.rmtree("DIR", ignore_errors=True)
        _, command, *words = shlex.split(line)
        if command not in ("discover", "detect"):
            shutil.copytree(base, "RUN")
        more = small if command in ("discover", "detect") else ["--once"] if command == "watch" else []
        truth = ["--labels", "labels.csv"] if command == "evaluate" else []
        dated = re.sub(r"--day \S+|--by \S+", "", shlex.join(words)) if command == "day" else shlex.join(words)
        call(command, *shlex.split(dated), *more, *truth)
        done += 1
    assert done >= 15
