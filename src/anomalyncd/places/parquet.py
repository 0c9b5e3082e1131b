"""Columns of a Parquet file, which may be anybody's: each text once, as it is stored, and no more than there is room for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..errors import DataError
from .stored import File

ROW_BYTES = 300  # that a row takes in memory, besides its text


def read_columns(
    path: File, wanted: Sequence[str], limit: int, check: Callable[[list[str]], None]
) -> dict[str, list[Any]]:
    """Lower-case name → cells, of the columns that are wanted and there.

    Parameters
    ----------
    limit : bytes that all of it may take; a small file may hold a long text millions of times
    check : called with the names of all columns before any is read
    """
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise DataError(f"{path}: Parquet needs pyarrow: pip install 'anomalyncd[parquet]', or give a CSV") from None
    try:
        with path.open("rb") as held:
            metadata = parquet.read_metadata(held)
            schema = metadata.schema.to_arrow_schema()
            names = {name.strip().lower(): name for name in schema.names}
            check(list(names))
            found: dict[str, list[Any]] = {name: [] for name in wanted if name in names}
            own = [names[name] for name in found]
            texts = [name for name in own if schema.field(name).type in (pa.string(), pa.large_string())]
            n_bytes = metadata.num_rows * ROW_BYTES
            file = parquet.ParquetFile(held, metadata=metadata, read_dictionary=texts)
            for batch in file.iter_batches(columns=own) if n_bytes <= limit else ():
                for cells, values in zip(found.values(), batch.columns, strict=True):
                    is_told_once = pa.types.is_dictionary(values.type)
                    stored = values.dictionary if is_told_once else values
                    n_bytes += stored.nbytes
                    if n_bytes > limit:
                        break
                    given = stored.to_pylist()
                    places = values.indices.to_pylist() if is_told_once else range(len(given))
                    cells += [None if place is None else given[place] for place in places]
            if n_bytes > limit:
                raise DataError(f"{path}: too large: the list takes more than {limit:,} bytes")
            return found
    except DataError:
        raise
    except (OSError, pa.ArrowException, ValueError) as error:  # ValueError: text that is not UTF-8
        raise DataError(f"{path}: expected a Parquet table ({error})") from error
