from __future__ import annotations

import gzip
import io
import struct
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anomalyncd.errors import DataError
from anomalyncd.places.headers import BLOCK, LATEST, MOST_WORDS, Member, members

LONG = "folder/" * 40 + "long.png"


def archive(*files: tuple[str, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w", format=form) as tar:
        for name, content in files:
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(content), 1_795_000_000
            tar.addfile(info, io.BytesIO(content))
    return held.getvalue()


def listed(data: bytes) -> list[Member]:
    return list(members(lambda begin, end: data[begin:end], len(data), "a.tar"))


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_members_lie_where_tarfile_says(form: int) -> None:
    names = ["a.png", "prefix/" * 12 + "u.png", "ü.png"] + [LONG] * (form != tarfile.USTAR_FORMAT)
    data = archive(*((name, name.encode() * 99) for name in names), form=form)
    found = listed(data)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        expected = [Member(one.name, one.offset_data, one.size, int(one.mtime) * 10**9) for one in tar]
    assert found == expected
    assert [data[one.begin : one.begin + one.size] for one in found] == [name.encode() * 99 for name in names]


def test_only_plain_files_count() -> None:
    held = io.BytesIO()
    kinds = (tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE)
    with tarfile.open(fileobj=held, mode="w") as tar:
        for kind in (*kinds, tarfile.GNUTYPE_SPARSE):
            info = tarfile.TarInfo(f"{kind!r}.png")
            info.type, info.linkname = kind, "/etc/passwd"
            tar.addfile(info)
        tar.addfile(tarfile.TarInfo("real.png"))
    assert [one.name for one in listed(held.getvalue())] == ["real.png"]


def test_times_may_have_parts_of_a_second() -> None:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as tar:
        info = tarfile.TarInfo("a.png")
        info.mtime = 1.5
        tar.addfile(info)
    assert listed(held.getvalue())[0].modified == 1_500_000_000


def with_field(data: bytes, start: int, field: bytes) -> bytes:
    """The first header with other bytes in it, and a right sum."""
    head = bytearray(data[:BLOCK])
    head[start : start + len(field)] = field
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head) + data[BLOCK:]


def test_sizes_are_checked() -> None:
    data = archive(("a.png", b"x" * 700))
    for field in (b"\xff" * 12, b"-0000000001\0", b"zz"):
        with pytest.raises(DataError, match="a size in it is none"):
            listed(with_field(data, 124, field))
    for size in (2**40, 2**80):
        with pytest.raises(DataError, match="cut short"):
            listed(with_field(data, 124, b"\x80" + size.to_bytes(11, "big")))
    assert listed(with_field(data, 124, b"\x80" + (700).to_bytes(11, "big")))[0].size == 700
    assert listed(with_field(data, 136, b"\xff" * 12))[0].modified == 0
    with pytest.raises(DataError, match="cut short"):
        listed(data[: BLOCK + 600])


def test_long_words_are_not_read() -> None:
    data = archive((LONG, b"x"), form=tarfile.GNU_FORMAT)
    promised = with_field(data, 124, b"%011o\0" % (MOST_WORDS + 1)) + bytes(2 * MOST_WORDS)
    with pytest.raises(DataError, match="the words about a file in the archive are too long"):
        listed(promised)
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        assert listed(archive(("a/" * 2046 + ".png", b"x"), form=form))
        with pytest.raises(DataError, match="a name in the archive is too long"):
            listed(archive(("a/" * 2047 + ".png", b"x"), form=form))


def test_times_fit_into_tables() -> None:
    late = with_field(archive(("a.png", b"x")), 136, b"\x80" + (2**80).to_bytes(11, "big"))
    assert listed(late)[0].modified == LATEST


def test_what_is_no_archive_is_told() -> None:
    with pytest.raises(DataError, match=r"^a.tar: packed with gzip, .* Unpack that$"):
        listed(gzip.compress(archive(("a.png", bytes(range(256)) * 20))))
    with pytest.raises(DataError, match=r"^a.tar: expected a tar archive, found something else$"):
        listed(b"Dear" * 500)
    data = archive(("a.png", b"x"), ("b.png", b"x"))
    with pytest.raises(DataError, match=r"damaged at byte 1,024"):
        listed(data[: 2 * BLOCK] + b"?" + data[2 * BLOCK + 1 :])
    with pytest.raises(DataError, match="expected a tar archive"):
        listed(b"Dear")


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_damage_is_an_error_or_members_inside(data: st.DataObject) -> None:
    whole = bytearray(archive(("a.png", b"x" * 20), (LONG, b"y" * 600), ("c/d.png", b"z")))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(whole) // BLOCK - 1)) * BLOCK
        start = data.draw(st.sampled_from([0, 124, 136, 156, 257, 345]))
        field = data.draw(st.binary(min_size=1, max_size=13))
        head = bytearray(whole[place : place + BLOCK])
        head[start : start + len(field)] = field
        head[148:156] = b" " * 8
        head[148:156] = struct.pack("8s", b"%06o\0 " % sum(head))
        whole[place : place + BLOCK] = head
    try:
        found = listed(bytes(whole))
    except DataError:
        return
    assert all(0 <= one.begin <= one.begin + one.size <= len(whole) for one in found)
