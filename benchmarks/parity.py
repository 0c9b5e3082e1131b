"""The same images through the same run by different engines: are labels and probabilities the same, and how fast is it?

    python benchmarks/parity.py RUN IMAGES [--maps DIR | --masks DIR] [--work DIR] [--limit 100] [--engine openvino]

`local` is torch, and what the others are compared with. On a machine that others use too, images/s says little; the time
that the process computed, over all cores, says more (`ray` and `service` work in other processes and have little of it).
Exports are made below --work, or read there from an earlier call.
Another engine is one more line in ENGINES.
"""

from __future__ import annotations

import argparse
import http.client
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from common import evenly, machine, positive, print_table
from service import Crowd, start
from service_cases import Requests

from anomalyncd.data.dataset import Dataset
from anomalyncd.data.gather import gather
from anomalyncd.discovery.classify import Prediction
from anomalyncd.estimator import AnomalyNCD
from anomalyncd.export.networks import export_networks
from anomalyncd.ray.engine import predict_with_ray
from anomalyncd.run.tables import read_csv
from anomalyncd.runtime import Runtime, is_exported

Classify = Callable[[Dataset], Prediction]


def local(run: Path, work: Path) -> Classify:
    return AnomalyNCD.load(run).predict


def exported(run: Path, work: Path, *, format: str, int8: bool = False, precision: str = "float32") -> Classify:
    folder = work / (format + ("-int8" if int8 else ""))
    if not (is_exported(folder) and _is_of(folder, run)):
        found = export_networks(run, format, folder, int8=int8)
        print(f"{folder.name}: {found.n_bytes / 1e6:.0f} MB" + "".join(f", {name} float32" for name in found.as_float))
    runtime = Runtime(folder, precision=precision, threads=torch.get_num_threads())
    return lambda inputs: runtime.predictor(bare=inputs.is_bare)(inputs)


def _is_of(folder: Path, run: Path) -> bool:
    """Whether an export that lies there already is of this run as it is now: int8 has a model of its own."""
    return (folder / "export.json").stat().st_mtime >= (run / "model.safetensors").stat().st_mtime


def with_ray(run: Path, work: Path) -> Classify:
    def classify(inputs: Dataset) -> Prediction:
        with tempfile.TemporaryDirectory(dir=work) as folder:
            written = predict_with_ray(run, inputs, Path(folder) / "images.csv", workers=2)
            return as_prediction(read_csv(written.images), read_csv(written.regions))

    return classify


def as_prediction(images: pd.DataFrame, regions: pd.DataFrame) -> Prediction:
    """Tables of a file as `predict` returns them."""
    probabilities = images.filter(regex=r"^p_\d+$").to_numpy(float)
    return Prediction(images["label"].to_numpy(int), probabilities, regions, images, {})


def service(run: Path, work: Path) -> Classify:
    """Two clients, a request for each image."""

    def classify(inputs: Dataset) -> Prediction:
        first = inputs.samples[0]
        needs = "map" if first.map is not None else "mask" if first.mask is not None else "image"
        requests = Requests(inputs.samples, needs, work / "nowhere")
        process, port = start(run, work / "opened.txt")
        crowd = Crowd(port, [], lambda case, content: "")

        def ask(name: str) -> dict:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
            status, content = crowd.send(connection, requests.form("one image", (name,)))
            connection.close()
            if status != 200:
                raise SystemExit(f"{name}: status {status}: {content}")
            return content["images"][0]

        try:
            with ThreadPoolExecutor(2) as clients:
                answers = list(clients.map(ask, requests.ids))
        finally:
            process.terminate()
            process.communicate(timeout=60)
        names = zip(requests.ids, answers, strict=True)
        regions = [
            {"image": name, "region": number, "label": region["label"]}
            for name, answer in names
            for number, region in enumerate(answer["regions"])
        ]
        images = pd.DataFrame({"image": requests.ids, "label": [answer["label"] for answer in answers]})
        probabilities = np.array([[*answer["probabilities"].values()] for answer in answers])
        table = pd.DataFrame(regions, columns=["image", "region", "label"])
        return Prediction(images["label"].to_numpy(int), probabilities, table, images, {})

    return classify


# Engine → what makes it ready, which is not timed, and returns what is.
ENGINES: dict[str, Callable[[Path, Path], Classify]] = {
    "local": local,
    "onnxruntime": partial(exported, format="onnx"),
    "openvino": partial(exported, format="openvino"),
    "openvino bfloat16": partial(exported, format="openvino", precision="bfloat16"),
    "openvino int8": partial(exported, format="openvino", int8=True),
    "ray": with_ray,
    "service": service,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("images", type=Path)
    given = parser.add_mutually_exclusive_group()
    given.add_argument("--maps", type=Path)
    given.add_argument("--masks", type=Path)
    parser.add_argument("--work", type=Path, help="keep the exports here; a temporary folder by default")
    parser.add_argument("--limit", type=positive, help="images, evenly spread; all by default")
    parser.add_argument("--engine", action="append", choices=ENGINES, help="one to compare; repeatable, all by default")
    options = parser.parse_args()

    bare = options.maps is None and options.masks is None
    inputs = gather(options.images, maps=options.maps, masks=options.masks, bare=bare)
    inputs = replace(inputs, samples=evenly(inputs.samples, options.limit))
    print(machine())
    print(", ".join(f"{name} {version(name)}" for name in ("onnxruntime", "openvino", "nncf")))
    source = options.maps or options.masks or "the run's detector"
    print(f"{options.run} on {len(inputs)} images of {options.images}, {source}", flush=True)
    reference: Prediction | None = None
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        work = options.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        for name, make in ENGINES.items():
            if options.engine and name not in ("local", *options.engine):
                continue
            classify = make(options.run.absolute(), work)
            classify(replace(inputs, samples=inputs.samples[:2]))  # kernels are made for shapes when these first come
            started, worked = time.perf_counter(), time.process_time()
            found = classify(inputs)
            seconds, computed = time.perf_counter() - started, time.process_time() - worked
            reference = reference or found
            rows.append(
                [
                    name,
                    *compared(found, reference),
                    f"{len(inputs) / seconds:.2f}",
                    f"{1000 * computed / len(inputs):.0f}",
                ]
            )
            print(" ".join(rows[-1]), flush=True)
    same = ("same image labels", "same region labels", "largest difference of probabilities")
    print_table(["engine", *same, "images/s", "processor ms/image"], rows)


def compared(found: Prediction, reference: Prediction) -> list[str]:
    """Shares of equal labels, and the largest difference of probabilities over all images and classes."""
    images = (found.labels == reference.labels).mean()
    key = ["image", "region"]
    both = reference.regions[[*key, "label"]].merge(found.regions[[*key, "label"]], how="outer", on=key)
    regions = (both["label_x"] == both["label_y"]).mean() if len(both) else 1.0
    difference = np.abs(found.probabilities - reference.probabilities).max()
    return [f"{images:.2%}", f"{regions:.2%}", f"{difference:.1e}"]


if __name__ == "__main__":
    main()
