"""Hooks of the documentation site (`make docs`): pages that lie outside docs/.

The model cards lie beside the weights in the package, README.md, CHANGELOG.md and CONTRIBUTING.md
in the root, where people look for them. They become pages of the site, and links to them follow.
"""

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
CARDS = "src/annocoin/weights/"
TOP = ("CHANGELOG.md", "CONTRIBUTING.md")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages outside docs/; README.md is the first page."""
    pages = {path.name: path for path in map(ROOT.joinpath, TOP)}
    pages |= {f"models/{path.name}": path for path in sorted((ROOT / CARDS).glob("*.md"))}
    pages["index.md"] = ROOT / "README.md"
    for name, path in pages.items():
        text = path.read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=_relinked(text, name)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Let links of the pages in docs/ follow."""
    return _relinked(markdown, page.file.src_uri)


def _relinked(text: str, page: str) -> str:
    """Links as they are in the repository, as links between pages of the site."""
    if page.startswith("models/"):
        return text.replace("](../../../docs/", "](../")
    text = text.replace(f"](../{CARDS}", "](models/").replace(f"]({CARDS}", "](models/")
    for name in (*TOP, "README.md"):
        text = text.replace(f"](../{name}", f"]({'index.md' if name == 'README.md' else name}")
    return text.replace("](docs/", "](").replace("](LICENSE)", "](index.md)")
