"""Bodies of requests: forms that another library wrote, and forms and JSON that are malformed."""

from __future__ import annotations

import httpx
import pytest
from fastapi import HTTPException
from hypothesis import given
from hypothesis import strategies as st

from anomalyncd.serve.uploads import Upload, parse

FORM = "multipart/form-data; boundary=b"
NAMES = st.text(st.characters(blacklist_categories=("Cs", "Cc")), max_size=20)


@given(files=st.lists(st.tuples(NAMES, st.binary(max_size=80)), min_size=1, max_size=4))
def test_a_form_that_another_library_wrote(files):
    """Contents of any bytes come out as they went in; httpx escapes what a name must not have."""
    request = httpx.Request("POST", "http://x", files=[("image", file) for file in files])
    found = parse(request.read(), request.headers["Content-Type"], "image", 4)
    assert [upload.image for upload in found] == [content for _, content in files]
    for number, ((name, _), upload) in enumerate(zip(files, found, strict=True)):
        if name.isalnum() or not name:
            assert upload.name == (name or f"image_{number}")


@given(content=st.binary(max_size=60), tail=st.sampled_from([b"", b"\r\n", b"--", b"\r\n--", b"\r\n--frontie"]))
def test_contents_that_look_like_an_end(content, tail):
    content += tail
    head = b'--frontier\r\ncontent-disposition: form-data; name="image"; filename="a"\r\nX: y\r\n\r\n'
    body = b"preamble\r\n" + head + content + b"\r\n--frontier--\r\nepilogue"
    if b"\r\n--frontier" not in content:
        assert parse(body, 'multipart/form-data; boundary="frontier"', "image", 1) == [Upload("a", content)]


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        (b"", FORM, "not whole"),
        (b"--b--", FORM, "at least one file"),
        (b"--b\r\n\r\nx\r\n--b--", FORM, "without a name"),
        (b'--b\r\nContent-Disposition: form-data; name="image"\r\n\r\nx', FORM, "not whole"),
        (b'--b\r\nContent-Disposition: form-data; name=""\r\n\r\nx\r\n--b--', FORM, "called ''"),
        (b'--b\r\nContent-Disposition: form-data; name="img"\r\n\r\nx\r\n--b--', FORM, "'img'"),
        (b"--b", "multipart/form-data", "boundary"),
        (b"--b", "multipart/form-data; boundary=\N{SKULL}", "boundary"),
        (b"[]", "application/json", "an object"),
        (b"{", "application/json", "JSON"),
        (b'{"images": []}', "application/json", "at least 1"),
        (b'{"images": [{"image": "####"}]}', "application/json", "images.0.image: expected the content of a file"),
        (b'{"images": [{"image": "", "path": "/etc/passwd"}]}', "application/json", "images.0.path"),
        (b'{"images": [{"image": "", "name": "\\ud800"}]}', "application/json", "Invalid JSON"),
        (b"[" * 100_000, "application/json", "recursion"),
    ],
)  # fmt: skip
def test_malformed_bodies_are_named(body, kind, words):
    with pytest.raises(HTTPException, match=words) as error:
        parse(body, kind, "image", 4)
    assert error.value.status_code == 422


def test_a_form_of_many_parts_is_left_as_soon_as_there_are_too_many():
    part = b'\r\n--b\r\nContent-Disposition: form-data; name="mask"\r\n\r\n'
    with pytest.raises(HTTPException, match="no more than 4 images") as error:
        parse(part * 100_000, FORM, "image", 4)
    assert error.value.status_code == 413


def test_large_files_stay_in_memory(monkeypatch):
    monkeypatch.setattr("tempfile.TemporaryFile", None)
    monkeypatch.setattr("tempfile.NamedTemporaryFile", None)
    monkeypatch.setattr("python_multipart.multipart.File.flush_to_disk", None)
    content = bytes(3_000_000)
    request = httpx.Request("POST", "http://x", files={"image": ("a", content)})
    assert parse(request.read(), request.headers["Content-Type"], "image", 1) == [Upload("a", content)]


def test_forms_write_nothing_into_the_log(caplog):
    for body in (b"--b--epilogue", b"--x", b"--b\r\n: x\r\n\r\n"):
        with pytest.raises(HTTPException):
            parse(body, FORM, "image", 4)
    assert not caplog.records
