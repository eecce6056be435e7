"""HTML and SVG in which whatever is not markup by construction is escaped."""

import base64
import html
import struct
import zlib
from typing import Any

import numpy as np


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def tag(name: str, *content: Any, **attributes: Any) -> Markup:
    """Return an element; its content is escaped unless it is `Markup`, attributes always are.

    A name like ``class_`` or ``text_anchor`` stands for ``class`` or ``text-anchor``; None leaves an attribute out.

    Examples
    --------
    >>> tag("p", "a < b", class_="note")
    '<p class="note">a &lt; b</p>'
    """
    given = (
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{''.join(given)}>{''.join(map(escape, content))}</{name}>")


def escape(content: Any) -> str:
    """Return what is not markup with its special characters escaped."""
    return content if isinstance(content, Markup) else html.escape(str(content))


def join(parts: Any) -> Markup:
    """Return several pieces of markup as one."""
    return Markup("".join(map(escape, parts)))


def table(heading: list[Any], rows: list[list[Any]], caption: str | None = None, class_: str | None = None) -> Markup:
    """Return a table that scrolls within itself where it is too wide; the first cell of a row is its heading."""
    head = tag("thead", tag("tr", *(tag("th", cell, scope="col") for cell in heading)))
    body = tag("tbody", *(tag("tr", tag("th", row[0], scope="row"), *map(_cell, row[1:])) for row in rows))
    whole = tag("div", tag("table", head, body, class_=class_), class_="scroll", tabindex="0")
    return whole if caption is None else tag("figure", tag("figcaption", caption), whole)  # may be wider than the table


def _cell(content: Any) -> Markup:
    return content if isinstance(content, Markup) and content.startswith("<td") else tag("td", content)


def image(values: np.ndarray, low: float, high: float, label: str) -> Markup:
    """Return a matrix as a grey picture, black at `low` and white at `high`."""
    scaled = np.clip((values - low) / ((high - low) or 1.0), 0, 1) * 255
    address = "data:image/png;base64," + base64.b64encode(png(scaled.astype(np.uint8))).decode()
    return tag("img", src=address, alt=label, title=label, width=values.shape[1], height=values.shape[0])


def png(grey: np.ndarray) -> bytes:
    """Return a PNG file of a matrix of bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width = grey.shape
    lines = b"".join(b"\0" + row.tobytes() for row in grey)
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")
