import gzip

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from discernel import readers
from discernel.readers import open_table

TABLE = pa.table(
    {
        "number": pa.array(np.arange(100) / 8),
        "whole": pa.array(np.arange(100) % 7),
        "text": pa.array([f"t{i % 3}" for i in range(100)]),
        "flag": pa.array(np.arange(100) % 2 == 0),
    }
)


def write_parquet(folder, table=TABLE, name="a.parquet", **options):
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, folder / name, **options)
    return folder / name


def write_csv(folder, text, name="a.csv"):
    (folder / name).write_text(text)
    return folder / name


def everything(data, types=None):
    table = open_table(data, types)
    return pa.Table.from_batches(table.batches(table.schema), table.schema)


def arrow_csv(folder):
    pyarrow.csv.write_csv(TABLE, folder / "a.csv")
    return folder / "a.csv"


def zipped_csv(folder):
    (folder / "a.csv.gz").write_bytes(gzip.compress(arrow_csv(folder).read_bytes()))
    return folder / "a.csv.gz"


def tabbed(folder):
    return write_csv(folder, arrow_csv(folder).read_text().replace(",", "\t"), "a.tsv")


def many(folder, write=write_parquet):
    for part in range(4):
        write(folder / "many", TABLE.slice(part * 25, 25), f"part-{part}.parquet")
    return folder / "many"


def csv_folder(folder):
    many(folder, lambda to, table, name: (to.mkdir(exist_ok=True), pyarrow.csv.write_csv(table, to / f"{name}.csv")))
    return folder / "many"


KINDS = {
    "pandas": lambda folder: TABLE.to_pandas(),
    "pandas with an index": lambda folder: TABLE.to_pandas().set_index(np.arange(100)[::-1]),
    "polars": lambda folder: pl.from_arrow(TABLE),
    "arrow": lambda folder: TABLE,
    "arrow in chunks": lambda folder: pa.concat_tables([TABLE.slice(0, 13), TABLE.slice(13)]),
    "record batch": lambda folder: TABLE.to_batches()[0],
    "Parquet": write_parquet,
    "text path": lambda folder: str(write_parquet(folder)),
    "small row groups": lambda folder: write_parquet(folder, row_group_size=7),
    "Parquet of another name": lambda folder: write_parquet(folder, name="a.data"),
    "folder": many,
    "glob": lambda folder: str(many(folder) / "part-*.parquet"),
    "list": lambda folder: sorted(many(folder).iterdir()),
    "CSV": arrow_csv,
    "CSV.gz": zipped_csv,
    "TSV": tabbed,
    "folder of CSV": csv_folder,
}


@pytest.mark.parametrize("kind", KINDS)
def test_all_kinds_of_table_have_the_same_rows(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "ROWS", 16)
    monkeypatch.setattr(readers, "CSV_BLOCK", 512)
    data = KINDS[kind](tmp_path)
    table = open_table(data)
    batches = list(table.batches(TABLE.schema))
    assert pa.Table.from_batches(batches).equals(TABLE)
    assert max(batch.num_rows for batch in batches) <= 64
    assert table.in_memory == (not isinstance(data, str | list) and not hasattr(data, "exists"))
    some = pa.schema([("flag", pa.bool_()), ("whole", pa.float64())])
    assert pa.Table.from_batches(table.batches(some)).equals(TABLE.select(["flag", "whole"]).cast(some))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("parts", [2, 3, 7, 150])
def test_parts_are_the_whole_and_are_contiguous(kind, parts, tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "ROWS", 16)
    table, read = open_table(KINDS[kind](tmp_path)), []
    table.parts, table.advance = parts, read.append
    pieces = []
    for table.part in range(parts):
        pieces.append(pa.Table.from_batches(table.batches(TABLE.schema), TABLE.schema))
    assert pa.concat_tables(pieces).equals(TABLE)
    assert sum(read) == 100
    if parts == 3 and "gz" not in kind:
        assert all(20 < len(piece) < 45 for piece in pieces)


@pytest.mark.parametrize(
    "text",
    [
        "x,y\n1,a\n2,b\n3,c",
        "x,y\r\n1,a\r\n2,b\r\n3,c\r\n",
        "\ufeffx,y\n1,a\n\n\n2,b\n\n3,c\n\n\n\n",
        'x,y\n1,"a"\n2,b\n3,c\n',
        "x,y\r1,a\r2,b\r3,c\r",
        "\n\r\n\nx,y\n1,a\n2,b\n\n3,c\n",
    ],
    ids=["no last end", "two bytes", "blank lines", "quotes", "old Macintosh", "blank first lines"],
)
def test_a_line_of_csv_is_in_one_part_whatever_ends_it(text, tmp_path):
    (tmp_path / "a.csv").write_bytes(text.encode())
    table = open_table(tmp_path / "a.csv")
    for parts in range(1, 40):
        table.parts, rows = parts, []
        for table.part in range(parts):
            rows += pa.Table.from_batches(table.batches(table.schema), table.schema).to_pylist()
        assert [row["x"] for row in rows] == [1, 2, 3]
        assert "".join(row["y"].strip("'") for row in rows) == "abc"


def test_row_groups_of_other_parts_are_not_read(tmp_path):
    path = write_parquet(tmp_path, row_group_size=10)
    content = bytearray(path.read_bytes())
    metadata = pq.ParquetFile(path).metadata
    last = metadata.row_group(9).column(0)
    begin = min(last.dictionary_page_offset or last.data_page_offset, last.data_page_offset)
    content[begin : begin + 20] = bytes(20)
    path.write_bytes(content)
    table = open_table(path)
    table.parts = 2
    assert pa.Table.from_batches(table.batches(TABLE.schema)).equals(TABLE.slice(0, 50))
    table.part = 1
    with pytest.raises(ValueError, match=r"a\.parquet is damaged"):
        list(table.batches(TABLE.schema))


def test_partitions_are_columns(tmp_path):
    for year, place in ((2023, "b c"), (2024, "a")):
        write_parquet(tmp_path / f"year={year}" / f"place={place.replace(' ', '%20')}")
    (tmp_path / "_SUCCESS").write_text("")
    (tmp_path / ".hidden").mkdir()
    write_parquet(tmp_path / ".hidden")
    (tmp_path / "README.md").write_text("not data")
    for data in (tmp_path, str(tmp_path / "year=*" / "**" / "*.parquet")):
        found = everything(data)
        assert found.select(TABLE.column_names).equals(pa.concat_tables([TABLE, TABLE]))
        assert found["year"].to_pylist() == [2023] * 100 + [2024] * 100
        assert found["place"].to_pylist() == ["b c"] * 100 + ["a"] * 100


def test_partitions_written_by_pyarrow(tmp_path):
    pq.write_to_dataset(TABLE, tmp_path, partition_cols=["text", "whole"])
    found = everything(tmp_path).select(TABLE.column_names)
    assert found.sort_by("number").equals(TABLE)
    missing = TABLE.set_column(2, "text", pa.array(["x", None] * 50))
    pq.write_to_dataset(missing, tmp_path / "null", partition_cols=["text"])
    assert everything(tmp_path / "null")["text"].null_count == 50


def test_the_types_of_csv_columns_are_inferred_from_its_values(tmp_path):
    path = write_csv(tmp_path, "a,b,c,d,e,f\n1,1.5,x,true,,1\n2,2,NA,false,,\n")
    types = {field.name: str(field.type) for field in open_table(path).schema}
    assert types == {"a": "int64", "b": "double", "c": "string", "d": "bool", "e": "null", "f": "int64"}
    found = everything(path)
    assert found["c"].to_pylist() == ["x", None]
    assert found["f"].to_pylist() == [1, None]
    assert everything(path, {"a": "string", "f": "float64"})["a"].to_pylist() == ["1", "2"]


def test_a_csv_column_that_begins_whole_is_read_as_the_type_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "CSV_BLOCK", 64)
    path = write_csv(tmp_path, "x,y\n" + "1,2\n" * 50 + "1.5,2\n")
    assert str(open_table(path).schema.field("x").type) == "int64"
    wanted = pa.schema([("x", pa.float64())])
    assert pa.Table.from_batches(open_table(path).batches(wanted))["x"].to_pylist() == [1.0] * 50 + [1.5]


def test_files_may_have_different_types_of_number(tmp_path):
    write_parquet(tmp_path, pa.table({"x": [1, 2]}), "a.parquet")
    write_parquet(tmp_path, pa.table({"x": [0.5, None]}), "b.parquet")
    assert everything(tmp_path)["x"].to_pylist() == [1.0, 2.0, 0.5, None]


def no_parquet(folder):
    return write_csv(folder, "this is text", "a.parquet")


def cut_parquet(folder):
    path = write_parquet(folder)
    path.write_bytes(path.read_bytes()[:-10])
    return path


def both_formats(folder):
    write_parquet(folder)
    write_csv(folder, "number\n1\n", "b.csv")
    return folder


def two_schemas(folder):
    write_parquet(folder)
    write_parquet(folder, TABLE.drop(["flag"]), "b.parquet")
    return folder


def two_types(folder):
    write_parquet(folder, pa.table({"x": [1]}))
    write_parquet(folder, pa.table({"x": ["a"]}), "b.parquet")
    return folder


def two_depths(folder):
    write_parquet(folder)
    write_parquet(folder / "year=2024")
    return folder


def another_encoding(folder):
    path = folder / "a.csv"
    path.write_bytes("café\n1\n".encode("latin-1"))
    return path


BAD = {
    "no file": (lambda f: f / "a.parquet", FileNotFoundError, "there is no file or folder"),
    "no match": (lambda f: str(f / "*.parquet"), FileNotFoundError, "has no files named .parquet"),
    "empty folder": (lambda f: f, FileNotFoundError, "has no files named .parquet"),
    "empty list": (lambda f: [], TypeError, "data must be a path.*got list"),
    "empty file": (lambda f: write_csv(f, ""), ValueError, "a.csv is empty"),
    "text named Parquet": (no_parquet, ValueError, "a.parquet is not a Parquet file"),
    "text of another name": (lambda f: write_csv(f, "x\n1\n", "a.txt"), ValueError, "CSV files are named .csv"),
    "damaged": (cut_parquet, ValueError, "a.parquet is damaged"),
    "two formats": (both_formats, ValueError, "all be Parquet or all CSV"),
    "other columns": (two_schemas, ValueError, r"must have the same columns; only one has \['flag'\]"),
    "other types": (two_types, ValueError, "columns of different types.*x"),
    "other folders": (two_depths, ValueError, r"must have the same columns; only one has \['year'\]"),
    "same name twice": (lambda f: write_csv(f, "x,x\n1,2\n"), ValueError, r"different names.*\['x'\]"),
    "ragged": (lambda f: write_csv(f, "x,y\n1,2\n3\n"), ValueError, "cannot be read as CSV.*Expected 2 columns"),
    "another encoding": (another_encoding, ValueError, "a.csv is not UTF-8 in its header.*iconv"),
    "lazy frame": (lambda f: pl.from_arrow(TABLE).lazy(), TypeError, "got LazyFrame"),
    "array": (lambda f: np.zeros((2, 2)), TypeError, "got ndarray; arrays are for ArraySource"),
}


@pytest.mark.parametrize("case", BAD)
def test_is_refused(case, tmp_path):
    make, error, match = BAD[case]
    with pytest.raises(error, match=match):
        everything(make(tmp_path))


def test_types_are_for_csv(tmp_path):
    for data in (write_parquet(tmp_path), pd.DataFrame({"x": [1]})):
        with pytest.raises(ValueError, match="types are for CSV"):
            open_table(data, {"x": "string"})
    path = write_csv(tmp_path, "x\n1\n")
    with pytest.raises(ValueError, match=r"types names \['y'\].*columns \['x'\]"):
        open_table(path, {"y": "string"})
    with pytest.raises(ValueError, match=r"types\['x'\] must be the name of an Arrow type.*'number'"):
        open_table(path, {"x": "number"})


def test_known_types_are_for_columns_that_do_not_tell_theirs(tmp_path):
    known = {"x": "string", "other": "string"}
    path = write_csv(tmp_path, "x,y\n007,\n")
    assert str(open_table(path, known=known).schema.field("x").type) == "string"
    assert str(open_table(path, {"x": "int64"}, known).schema.field("x").type) == "int64"
    write_parquet(tmp_path / "parts" / "x=007", pa.table({"y": [1]}))
    found = open_table(tmp_path / "parts", known=known)
    assert next(iter(found.batches(found.schema)))["x"].to_pylist() == ["007"]
    for data in (write_parquet(tmp_path, pa.table({"x": [7]})), pd.DataFrame({"x": [7]})):
        assert str(open_table(data, known=known).schema.field("x").type) == "int64"


def test_files_in_which_a_column_is_empty_have_the_type_of_the_others(tmp_path):
    write_csv(tmp_path, 'x\n""\n', "a.csv")
    write_csv(tmp_path, "x\nb\n", "b.csv")
    assert everything(tmp_path)["x"].to_pylist() == [None, "b"]


def test_a_csv_file_that_goes_on_differently_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "CSV_BLOCK", 64)
    path = write_csv(tmp_path, "x,y\n" + "1,2\n" * 50 + "a,2\n")
    with pytest.raises(ValueError, match=r"does not go on as it begins.*'a'.*give types="):
        everything(path)
    assert everything(path, {"x": "string"})["x"].to_pylist()[-1] == "a"


def test_a_column_that_cannot_be_read_as_asked_is_named():
    with pytest.raises(ValueError, match="the column 'number' cannot be read as int64"):
        list(open_table(TABLE).batches(pa.schema([("number", pa.int64())])))


def test_without_pyarrow_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"discernel\[tables\]"):
        open_table("a.parquet")
