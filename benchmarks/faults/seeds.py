"""Valid files of every kind that is read, small, made once: what the fuzzer begins with."""

from __future__ import annotations

import io
import zlib
from pathlib import Path

import cv2
import numpy as np
import onnx
import safetensors.torch
import torch
from onnx import helper, numpy_helper
from PIL import Image

from .mutate import tiff_file

INCOMPLETE = ".onnx"  # the only seed that is refused: a whole one would have 90 MB
Seeds = dict[str, list[tuple[str, bytes]]]  # kind → (suffix, content)


def picture_seeds() -> Seeds:
    """Images, maps and masks in all formats and depths."""
    rng = np.random.default_rng(0)
    rgb = cv2.GaussianBlur(rng.integers(0, 256, (20, 24, 3), dtype=np.uint8), (5, 5), 0)
    rgba = np.dstack([rgb, rgb[..., 0]])
    grey, grey16 = rgb[..., 0].copy(), rgb[..., 0].astype(np.uint16) * 257
    fractions = (grey / 255).astype(np.float32)
    mask = np.where(grey > 128, 255, 0).astype(np.uint8)
    exif = Image.Exif()
    exif[274] = 6
    colour, one = Image.fromarray(rgb), Image.fromarray(grey)
    pngs = [
        *(
            pillow(image, "PNG")
            for image in (colour, one, Image.fromarray(rgba), colour.quantize(16), one.convert("1"))
        ),
        *(cv2.imencode(".png", pixels)[1].tobytes() for pixels in (grey16, rgb.astype(np.uint16) * 257)),
    ]
    jpegs = [
        pillow(colour, "JPEG", exif=exif), pillow(one, "JPEG"), pillow(colour.convert("CMYK"), "JPEG"),
        pillow(colour, "JPEG", progressive=True),
    ]  # fmt: skip
    bmps = [pillow(image, "BMP") for image in (colour, one, colour.quantize(16), one.convert("1"))]
    webps = [
        pillow(colour, "WEBP"), pillow(Image.fromarray(rgba), "WEBP", lossless=True),
        pillow(colour, "WEBP", save_all=True, append_images=[colour.rotate(90)]),
    ]  # fmt: skip
    shallow = [
        pillow(colour, "TIFF", compression=kind)
        for kind in ("raw", "tiff_lzw", "tiff_adobe_deflate", "jpeg", "packbits", "lzma", "zstd")
    ]
    shallow += [pillow(one.convert("1"), "TIFF", compression=kind) for kind in ("group3", "group4")]
    shallow += [pillow(colour.convert(mode), "TIFF", compression="tiff_lzw") for mode in ("P", "CMYK", "LAB")]
    deep = [
        tiff(grey16), tiff(grey16, packed=True), tiff(fractions), tiff(fractions.astype(np.float64)),
        tiff(rgb.astype(np.uint16) * 257, tile=16), tiff(fractions, big=True, order=">"),
        tiff(np.moveaxis(rgb.astype(np.uint16), 2, 0)), tiff(np.moveaxis(rgb, 2, 0), packed=True, tile=16, big=True),
        pillow(Image.fromarray(grey16), "TIFF", compression="tiff_lzw"),
    ]  # fmt: skip
    arrays = [array(fractions), array(fractions.astype(np.float64)), array(grey), array(np.asfortranarray(fractions))]
    arrays += [array(fractions.astype(">f4")), array(fractions[None, ..., None]), array(mask > 0)]
    tiffs = [(".tif", data) for data in (*shallow, *deep)]
    images = [(".png", d) for d in pngs] + [(".jpg", d) for d in jpegs] + [(".bmp", d) for d in bmps]
    images += [(".webp", d) for d in webps] + tiffs
    maps = [(".npy", d) for d in arrays] + [(".tiff", d) for d in deep[:4]] + [(".png", pngs[1]), (".png", pngs[5])]
    stored = Image.fromarray(mask)
    masks = [(".png", pillow(stored, "PNG")), (".png", pillow(stored.convert("1"), "PNG")), (".npy", arrays[-1])]
    masks += [(".jpg", pillow(stored, "JPEG")), (".bmp", pillow(stored, "BMP")), (".tif", tiff(mask))]
    masks += [(".webp", pillow(stored, "WEBP", lossless=True)), (".png", pngs[3])]
    stacks = [(".npy", array(np.stack([fractions] * 3))), (".npy", array(np.stack([grey] * 3)[:, None]))]
    return {"image": images, "map": maps, "mask": masks, "stack": stacks}


def weight_seeds(folder: Path) -> Seeds:
    """Weight files: safetensors, pickled, nested, ONNX."""
    tensors = {"cls_token": torch.zeros(1, 1, 8), "blocks.0.attn.qkv.weight": torch.ones(24, 8)}
    found = []
    for nested in (tensors, {"teacher": {f"module.backbone.{name}": value for name, value in tensors.items()}}):
        for new in (True, False):
            buffer = io.BytesIO()
            torch.save(nested, buffer, _use_new_zipfile_serialization=new)
            found.append((".pth", buffer.getvalue()))
    found.append((".safetensors", safetensors.torch.save(tensors)))
    weight = numpy_helper.from_array(np.ones((8, 8), np.float32), "backbone.embeddings.cls_token")
    node = helper.make_node(
        "MatMul", ["x", weight.name], ["y"], name="/backbone/encoder/layer.0/attention/output/dense/MatMul"
    )
    value = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [8, 8]) for name in "xy"]
    graph = helper.make_graph([node], "g", value[:1], value[1:], [weight])
    found.append((".onnx", helper.make_model(graph).SerializeToString()))
    return {"weights": found}


def text_seeds(images: Path) -> Seeds:
    """Lists of images, labels and settings; images : folder of images/, maps/ and masks/ with a and b in each."""
    assert images.is_dir()
    rows = "images/a.png,maps/a.npy,crack\nimages/b.png,maps/b.npy,good\n"
    lists = [
        f"image,map,label\n{rows}",
        '\ufeffImage,LABEL\r\n"images/a.png",x\r\n./images/b.png,"y, z"\r\n',
        "image\nimages/a.png\n",
    ]
    labels = ["image,label\na.png,crack\nb.png,good\n", 'image,label,more\n"a, b.png",größe,1\n']
    settings = [
        "n_classes: 5\npreset: paper\nlearn:\n  epochs: 3\n  n_heads: 2\nmodel: {backbone: tiny}\n",
        "detect:\n  name: patchcore\n  settings: {size: 64}\nfeatures: &a {views: 2}\nunknown: {group: 3}\ndevice: cpu\n",
    ]
    single = ("learn.epochs=5", "model.backbone=tiny", "detect.settings={size: 64}")
    base = "image,mask,label\nimages/a.png,masks/a.png,crack\nimages/b.png,masks/b.png,dent\n"
    return {
        "base": [(".csv", base.encode())],
        "setting": [(".txt", text.encode()) for text in single],
        "list": [(".csv", text.encode()) for text in lists], "labels": [(".csv", text.encode()) for text in labels],
        "settings": [(".yaml", text.encode()) for text in settings], "row names": [(".txt", b"a.png\nb.png\nc.png\n")],
    }  # fmt: skip


def pillow(image: Image.Image, form: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)  # type: ignore[arg-type]
    return buffer.getvalue()


def tiff(pixels: np.ndarray, *, packed: bool = False, tile: int = 0, order: str = "<", big: bool = False) -> bytes:
    """(H, W), (H, W, 3) or, in separate planes, (3, H, W); packed : deflated; tile : side of a tile, 0 for one strip"""
    is_separate = pixels.ndim == 3 and len(pixels) == 3
    planes = [*pixels] if is_separate else [pixels]
    height, width = planes[0].shape[:2]
    n_samples = 3 if pixels.ndim == 3 else 1
    tags = {
        256: width, 257: height, 258: [8 * pixels.itemsize] * n_samples, 259: 8 if packed else 1,
        262: 2 if n_samples == 3 else 1, 277: n_samples, 284: 2 if is_separate else 1,
        339: [{"u": 1, "i": 2, "f": 3}[pixels.dtype.kind]] * n_samples,
    }  # fmt: skip
    tags |= {322: tile, 323: tile} if tile else {278: height}
    chunks = []
    for plane in planes:
        ends = ((0, -height % tile), (0, -width % tile)) if tile else ((0, 0), (0, 0))
        padded = np.pad(plane, (*ends, (0, 0))[: plane.ndim]).astype(pixels.dtype.newbyteorder(order))
        steps = [(y, x) for y in range(0, len(padded), tile) for x in range(0, padded.shape[1], tile)] if tile else []
        parts = [padded[y : y + tile, x : x + tile] for y, x in steps] or [padded]
        chunks += [zlib.compress(part.tobytes()) if packed else part.tobytes() for part in parts]
    return tiff_file(tags, chunks, order=order, big=big, tiled=bool(tile))


def array(values: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, values)
    return buffer.getvalue()
