"""Check the links of a built site: every page, picture and place on a page that one names has to be there.

    python docs/links.py build/docs

Addresses on the network are counted, not asked: `python -m sphinx -b linkcheck docs build/links` does that where there
is one.
"""

import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """What a page links to, and the places on it that others can link to."""

    def __init__(self, path: Path):
        super().__init__()
        self.links: set[str] = set()
        self.places: set[str] = {"", "top"}
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        """Take note of what a tag links to, and of its name."""
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.add(value)
            elif name in ("id", "name") and value:
                self.places.add(value)


read = cache(Page)


def problem(page: Path, link: str) -> str | None:
    """Return what is wrong with a link within the site, if anything is."""
    address = urlsplit(link)
    target = (page.parent / unquote(address.path)).resolve() if address.path else page
    if not target.is_file():
        return f"{page}: {link} is not there"
    if target.suffix == ".html" and unquote(address.fragment) not in read(target).places:
        return f"{page}: {link} names a place that is not on the page"
    return None


def main(site: Path) -> int:
    """Return how many links lead nowhere, having named them."""
    pages = [page for page in sorted(site.rglob("*.html")) if "_static" not in page.parts]
    links = [(page.resolve(), link) for page in pages for link in sorted(read(page).links)]
    inside = [(page, link) for page, link in links if not urlsplit(link).scheme and not urlsplit(link).netloc]
    outside = {link for _, link in links if urlsplit(link).scheme.startswith("http")}
    problems = [found for page, link in inside if (found := problem(page, link))]
    print(*problems, sep="\n", end="\n" if problems else "")
    print(f"{len(inside)} links within the site, {len(problems)} broken; {len(outside)} addresses outside, not asked")
    return len(problems)


if __name__ == "__main__":
    sys.exit(bool(main(Path(sys.argv[1]))))
