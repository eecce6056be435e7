"""Reading tables: Parquet, CSV, data frames and Arrow tables as one stream of record batches.

Nothing here keeps more than a few batches of 65536 rows. pyarrow is imported when a table is opened.
"""

import glob
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote

ROWS = 2**16  # of a record batch
CSV_BLOCK = 2**24  # bytes that are parsed at once, and that types are inferred from
PARQUET_SMALL = 2**24  # bytes of a file without a buffer, which would grow to what a damaged page says that it has
PARQUET_NAMES = (".parquet", ".pq", ".parq")
CSV_NAMES = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


class Table(ABC):
    """Named, typed columns of which the rows can be read over and over, in their order."""

    schema: Any  # pyarrow.Schema
    in_memory: bool
    part: int = 0  # which of so many contiguous parts of the rows is read
    parts: int = 1
    advance: Callable[[int], None] = staticmethod(lambda rows: None)  # is told how many rows have been read

    def batches(self, wanted: Any) -> Iterator[Any]:
        """Yield the rows as record batches with the columns and types of the schema `wanted`."""
        for batch in self._batches(wanted):
            yield batch
            self.advance(batch.num_rows)

    @abstractmethod
    def _batches(self, wanted: Any) -> Iterator[Any]:
        """Yield the rows."""

    def _bounds(self, size: int) -> tuple[int, int]:
        """Return where the part begins and ends in something of this size."""
        return size * self.part // self.parts, size * (self.part + 1) // self.parts


class Frame(Table):
    """A table in memory."""

    in_memory = True

    def __init__(self, table: Any):
        self.table, self.schema = table, _distinct(table.schema)

    def _batches(self, wanted):
        start, stop = self._bounds(self.table.num_rows)
        for batch in self.table.select(wanted.names).slice(start, stop - start).to_batches(max_chunksize=ROWS):
            yield _cast(batch, wanted, "the table")


class Files(Table):
    """Files of one format, one after the other; names of folders like ``year=2024`` are columns too."""

    in_memory = False

    def __init__(
        self, files: Mapping[Path, Mapping[str, str | None]], types: Mapping[str, str], known: Mapping[str, str]
    ):
        import pyarrow as pa

        formats = {path: _format(path) for path in files}
        if len(set(formats.values())) > 1:
            kinds = {kind.__name__: str(path) for path, kind in formats.items()}
            raise ValueError(f"the files must all be Parquet or all CSV, got {kinds}")
        self.format, self.files = next(iter(formats.values())), files
        given, likely = ({name: _type(name, alias) for name, alias in each.items()} for each in (types, known))
        schemas = {path: _distinct(self.format.schema(path, given, likely)) for path in files}
        first = next(iter(files))
        for path, schema in schemas.items():
            differ = set(schema.names) ^ set(schemas[first].names) or set(files[path]) ^ set(files[first])
            if differ:
                raise ValueError(f"{path} and {first} must have the same columns; only one has {sorted(differ)}")
        try:
            own = pa.unify_schemas(list(schemas.values()), promote_options="permissive")
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise ValueError(f"the files have columns of different types: {error}") from error
        parts = pa.schema([(name, likely.get(name) or _partition_type(name, files.values())) for name in files[first]])
        self.schema = pa.schema([*own, *(field for field in parts if field.name not in own.names)])
        self.partitions = set(parts.names) - set(own.names)

    def _batches(self, wanted):
        import pyarrow as pa

        own = pa.schema([self._as_read(field) for field in wanted if field.name not in self.partitions])
        for path, start, stop in self._pieces():
            parts = self.files[path]
            for batch in self.format.batches(path, own, start, stop):
                columns = {
                    name: pa.array([parts[name]] * batch.num_rows) if name in self.partitions else batch.column(name)
                    for name in wanted.names
                }
                yield _cast(pa.RecordBatch.from_pydict(columns), wanted, path)

    def _as_read(self, field: Any) -> Any:
        """Return a wanted column as it is to be read: CSV has no whole number in 1.0, which a cast makes one of."""
        import pyarrow.types as pt

        given = self.schema.field(field.name)
        return given if pt.is_integer(field.type) and pt.is_floating(given.type) else field

    def _pieces(self) -> Iterator[tuple[Path, int, int]]:
        """Yield the files that are in the part, each with where to begin and to end in it."""
        sizes = {path: self.format.size(path) for path in self.files}
        first, last = self._bounds(sum(sizes.values()))
        for path, size in sizes.items():
            if max(first, 0) < min(last, size):
                yield path, max(first, 0), min(last, size)
            first, last = first - size, last - size


class Parquet:
    """How Parquet files are read: page by page, whatever the size of their row groups."""

    @staticmethod
    def size(path: Path) -> int:
        """Return the number of rows."""
        return _parquet(path).metadata.num_rows

    @staticmethod
    def schema(path: Path, types: Mapping[str, Any], known: Mapping[str, Any]):
        """Return the columns, whose types are in the file."""
        if types:
            raise ValueError(f"types are for CSV files; {path} is Parquet and has its own")
        return _parquet(path).schema_arrow.remove_metadata()

    @staticmethod
    def batches(path: Path, wanted, start: int, stop: int):
        """Yield the rows from `start` to `stop`; row groups that have none of them are not read."""
        with _parquet(path) as file, _damaged(path):
            counts = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
            begins = [end - count for end, count in zip(accumulate(counts), counts, strict=True)]
            groups = [i for i, begin in enumerate(begins) if begin < stop and begin + counts[i] > start]
            place = begins[groups[0]] if groups else stop
            for batch in file.iter_batches(ROWS, row_groups=groups, columns=wanted.names, use_threads=False):
                batch.validate(full=True)  # that all text is text, and all lengths are those of what is there
                first, last = (min(max(end - place, 0), batch.num_rows) for end in (start, stop))
                place += batch.num_rows
                if first < last:
                    yield batch.slice(first, last - first)
                if place >= stop:
                    return


class Csv:
    """How CSV files are read: a header, then one line a row; the first 16 MiB decide the types."""

    @staticmethod
    def schema(path: Path, types: Mapping[str, Any], known: Mapping[str, Any]):
        """Return the columns; one without any value in the first block is null, unless its type is given or known."""
        import pyarrow as pa

        with _csv(path, {**known, **types}, None) as file:
            found = file.schema
        try:
            names = found.names
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not UTF-8 in its header: convert it, as with iconv") from error
        foreign = [field.name for field in found if pa.types.is_binary(field.type)]
        if foreign:
            raise ValueError(f"{path} is not UTF-8 in the columns {foreign}: convert it, as with iconv")
        unknown = set(types) - set(names)
        if unknown:
            raise ValueError(f"types names {sorted(unknown)}, but {path} has the columns {names}")
        return found

    @staticmethod
    def size(path: Path) -> int:
        """Return the number of bytes."""
        return path.stat().st_size

    @staticmethod
    def batches(path: Path, wanted, start: int, stop: int):
        """Yield the rows whose lines begin from byte `start` to before byte `stop`."""
        import pyarrow as pa

        first, last = _lines(path, start, stop)
        if first >= last:
            return
        types = {field.name: field.type for field in wanted}
        with _csv(path, types, wanted.names, first, last) as file:
            try:
                yield from file
            except pa.ArrowInvalid as error:
                raise ValueError(
                    f"{path} does not go on as it begins: {error}. Types are inferred from the first 16 MiB; if a "
                    'column was taken for another type than it has, give types={"its name": "string"}'
                ) from error


def open_table(data: Any, types: Mapping[str, str] | None = None, known: Mapping[str, str] | None = None) -> Table:
    """Return the table in `data`: paths of files or folders, glob patterns, a data frame or an Arrow table; or itself.

    A CSV file does not tell text from what it looks like. So `types` are those of some of its columns, which it must
    have; `known` are those that a model knows columns by, which go for CSV files and for the names of folders alone.
    """
    try:
        import pyarrow as pa
    except ImportError as error:
        raise ImportError('tables are read with pyarrow: pip install "discernel[tables]"') from error
    paths = isinstance(data, str | os.PathLike)
    if paths or (isinstance(data, list | tuple) and data and all(isinstance(p, str | os.PathLike) for p in data)):
        files = {k: v for path in ([data] if paths else data) for k, v in found_files(path).items()}
        return Files(files, types or {}, known or {})
    if types:
        raise ValueError("types are for CSV files; a table in memory has its own")
    if isinstance(data, Table):
        return data
    if hasattr(data, "iloc"):
        return Frame(pa.Table.from_pandas(data, preserve_index=False))  # the index of pandas is not a column
    if hasattr(data, "__arrow_c_stream__"):
        return Frame(pa.table(data))
    raise TypeError(
        "data must be a path, a list of paths, a glob pattern, a data frame or an Arrow table, got "
        f"{type(data).__name__}; arrays are for ArraySource"
    )


def _distinct(schema):
    twice = {name for name in schema.names if schema.names.count(name) > 1}
    if twice:
        raise ValueError(f"the columns must have different names, but there are several of {sorted(twice)}")
    return schema


def found_files(pattern: str | os.PathLike) -> dict[Path, dict[str, str | None]]:
    """Return the files that a path, a folder or a pattern stands for, sorted, with the values their folders name."""
    path = Path(pattern)
    if path.is_file():
        return {path: {}}
    if path.is_dir():
        root, candidates = path, path.rglob("*")
    elif glob.has_magic(str(path)):
        parts = path.parts
        root = Path(*parts[: next(i for i, part in enumerate(parts) if glob.has_magic(part))])
        candidates = map(Path, glob.glob(str(path), recursive=True))
    else:
        raise FileNotFoundError(f"there is no file or folder {str(path)!r}")
    found = {}
    for file in sorted(candidates):
        below = file.relative_to(root).parts
        if file.is_file() and file.name.endswith(PARQUET_NAMES + CSV_NAMES) and not any(p[0] in "._" for p in below):
            pairs = (unquote(part).split("=", 1) for part in below[:-1] if "=" in part)
            found[file] = {name: None if value == NO_VALUE else value for name, value in pairs}
    if not found:
        raise FileNotFoundError(f"{str(path)!r} has no files named {', '.join(PARQUET_NAMES + CSV_NAMES)}")
    return found


def _format(path: Path) -> type[Parquet] | type[Csv]:
    if path.stat().st_size == 0:
        raise ValueError(f"{path} is empty")
    with open(path, "rb") as file:
        parquet = file.read(4) == b"PAR1"
    if not parquet and not path.name.endswith(CSV_NAMES):
        raise ValueError(f"{path} is not a Parquet file, and CSV files are named {', '.join(CSV_NAMES)}")
    return Parquet if parquet else Csv


def _parquet(path: Path):
    import pyarrow.parquet as pq

    buffer_size = 2**16 if path.stat().st_size > PARQUET_SMALL else 0  # so that no large row group is in memory whole
    with _damaged(path):
        return pq.ParquetFile(path, buffer_size=buffer_size, pre_buffer=False)


@contextmanager
def _damaged(path: Path) -> Iterator[None]:
    """Say which file it is that Arrow cannot read: some of its errors are those of the system, but without a number."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if getattr(error, "errno", None) is not None:
            raise
        raise ValueError(f"{path} is damaged: {' '.join(str(error).split())}") from error


def _lines(path: Path, start: int, stop: int) -> tuple[int, int]:
    """Return the bytes of whole lines that begin from `start` to before `stop`; a compressed file is one line.

    The header, with blank lines before it, is in the first part, also in one that would end before it.
    """
    size = path.stat().st_size
    if path.suffix == ".gz":
        return (0, size) if start == 0 else (size, size)
    with open(path, "rb") as file:
        header = _content(file, 0)[1]
        first, last = (max(header, _line(file, place)) if place else 0 for place in (start, stop))
        return (_content(file, first)[0] if first else 0), last  # blank lines alone would not be a table


def _content(file: BinaryIO, place: int) -> tuple[int, int]:
    """Return where the first line that is not blank begins and ends, from this byte on."""
    file.seek(place)
    for line in iter(file.readline, b""):
        if line.strip(b"\r\n"):
            return file.tell() - len(line), file.tell()
    return file.tell(), file.tell()


def _line(file: BinaryIO, place: int) -> int:
    """Return where the next line begins, at this byte or after it."""
    if place == 0:
        return 0
    file.seek(place - 1)
    file.readline()
    return file.tell()


def _csv(path: Path, types: Mapping[str, Any], columns: list[str] | None, start: int = 0, stop: int | None = None):
    """Open a file, or the lines in some of its bytes, of which the first are the header."""
    import pyarrow as pa
    from pyarrow import csv

    read = csv.ReadOptions(block_size=CSV_BLOCK)
    source = path
    if start:
        with _csv(path, types, None) as file:
            read.column_names = file.schema.names
    if stop is not None and path.suffix != ".gz":
        source = pa.OSFile(str(path)).get_stream(start, stop - start)
    parse = csv.ParseOptions(delimiter="\t" if ".tsv" in path.name else ",")
    convert = csv.ConvertOptions(column_types=dict(types), include_columns=columns or [], strings_can_be_null=True)
    try:
        return csv.open_csv(source, read_options=read, parse_options=parse, convert_options=convert)
    except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
        raise ValueError(f"{path} cannot be read as CSV: {error}") from error


def _type(name: str, given: str):
    import pyarrow as pa

    try:
        return pa.type_for_alias(given)
    except (ValueError, TypeError) as error:
        message = (
            f'types[{name!r}] must be the name of an Arrow type ("float64", "int64", "string", ...), got {given!r}'
        )
        raise ValueError(message) from error


def _partition_type(name: str, files):
    """Return the type of a column that the names of folders make: whole numbers, or text."""
    import pyarrow as pa

    values = {parts[name] for parts in files if parts.get(name) is not None}
    return pa.int64() if all(value.removeprefix("-").isdecimal() for value in values) else pa.string()


def _cast(batch, wanted, where):
    import pyarrow as pa

    columns = []
    for field in wanted:
        try:
            # Large whole numbers are rounded when they become floating-point ones.
            columns.append(batch.column(field.name).cast(field.type, safe=not pa.types.is_floating(field.type)))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise ValueError(f"{where}: the column {field.name!r} cannot be read as {field.type}: {error}") from error
    return pa.RecordBatch.from_arrays(columns, schema=wanted)
