"""Hooks of the documentation site (`make docs`): pages that are no Markdown in docs/.

The model cards lie beside the weights in the package, README.md, CHANGELOG.md and CONTRIBUTING.md
in the root, where people look for them. They become pages of the site, as does the notebook with
its outputs, and links to them follow.
"""

import json
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
CARDS = "src/annocoin/weights/"
TOP = ("CHANGELOG.md", "CONTRIBUTING.md")
NOTEBOOK = "first-steps.ipynb"


def on_files(files: Any, config: Any) -> Any:
    """Add the pages outside docs/; README.md is the first page."""
    pages = {path.name: path for path in map(ROOT.joinpath, TOP)}
    pages |= {f"models/{path.name}": path for path in sorted((ROOT / CARDS).glob("*.md"))}
    pages["index.md"] = ROOT / "README.md"
    for name, path in pages.items():
        text = path.read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=_relinked(text, name)))
    page = notebook_page(ROOT / "docs" / NOTEBOOK)
    files.append(File.generated(config, NOTEBOOK.replace(".ipynb", ".md"), content=page))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Let links of the pages in docs/ follow."""
    return _relinked(markdown, page.file.src_uri)


def notebook_page(path: Path) -> str:
    """A notebook as Markdown: its text, code, printed output and pictures."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/jpeg" in data:
                picture = "".join(data["image/jpeg"]).replace("\n", "")
                parts.append(f"![output of the cell](data:image/jpeg;base64,{picture})")
            elif text := "".join(output.get("text", data.get("text/plain", ""))):
                parts.append(f"```text\n{text.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def _relinked(text: str, page: str) -> str:
    """Links as they are in the repository, as links between pages of the site."""
    if page.startswith("models/"):
        return text.replace("](../../../docs/", "](../")
    text = text.replace(f"](../{CARDS}", "](models/").replace(f"]({CARDS}", "](models/")
    for name in (*TOP, "README.md"):
        text = text.replace(f"](../{name}", f"]({'index.md' if name == 'README.md' else name}")
    for link in (NOTEBOOK, f"docs/{NOTEBOOK}"):
        text = text.replace(f"]({link})", "](first-steps.md)")
    return text.replace("](docs/", "](").replace("](LICENSE)", "](index.md)")
