"""What `make docs` needs beyond mkdocs: pages that live outside docs/, links that lead to them, our docstrings as Markdown.

README.md is the site's front page; CONTRIBUTING.md, CHANGELOG.md and the examples are shown beside the pages of docs/.
Links are written as they work in the repository; here they are turned into links within the site.
"""

import posixpath
import re
from pathlib import Path

import griffe
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
MIRRORED = {"README.md": "index.md", "CONTRIBUTING.md": "CONTRIBUTING.md", "CHANGELOG.md": "CHANGELOG.md"}
MIRRORED |= {f"examples/{path.name}": f"examples/{path.name}" for path in sorted((ROOT / "examples").glob("*.py"))}
MIRRORED |= {name: name for name in ("LICENSE", "CITATION.cff")}
ORIGINAL = {there: here for here, there in MIRRORED.items()}
ROLES = re.compile(r":(?:mod|class|func|meth|attr|data|exc|doc):(?=`)")
DOCTEST = re.compile(r"^([ ]*)>>> .*(?:\n\1\S.*)*", re.M)


def in_site(path: str) -> str | None:
    """Where a file of the repository is in the site; None if it is not there."""
    return path.removeprefix("docs/") if path.startswith("docs/") else MIRRORED.get(path)


def on_files(files, config):
    """Add the files that live outside docs/."""
    for here, there in MIRRORED.items():
        if (ROOT / here).is_file():
            files.append(File.generated(config, there, abs_src_path=str(ROOT / here)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Turn links as they work in the repository into links within the site."""
    uri = page.file.src_uri
    folder = posixpath.dirname(ORIGINAL.get(uri, f"docs/{uri}"))

    def moved(match):
        target, anchor = match[2], match[3]
        there = in_site(posixpath.normpath(posixpath.join(folder, target)))
        if there is None:
            return match[0]
        return f"{match[1]}{posixpath.relpath(there, posixpath.dirname(uri) or '.')}{anchor}"

    return re.sub(r"(\]\()(?!https?:|mailto:|#)([^)#\s]+)((?:#[^)]*)?(?=\)))", moved, markdown)


class Docstrings(griffe.Extension):
    """Docstrings are written for readers of the source; doctests become code blocks and Sphinx roles plain names."""

    def on_object(self, *, obj, **_):
        if obj.docstring is not None:
            text = DOCTEST.sub(lambda match: f"{match[1]}```pycon\n{match[0]}\n{match[1]}```", obj.docstring.value)
            obj.docstring.value = ROLES.sub("", text)
