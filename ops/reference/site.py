"""Hooks of mkdocs: what pages show of the repository around them. Links to files beyond ops/docs work where a page is
read in the repository; on the site they lead to it where FEDIL_REPOSITORY says where that is, and else are text."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "ops" / "pictures"
_LINK = re.compile(r"(?<!!)\[([^]]+)\]\((\.\./[^)#]*)(#[^)]*)?\)")


def on_files(files: "Files", config: "MkDocsConfig") -> "Files":
    from mkdocs.structure.files import File

    for picture in PICTURES.iterdir():
        files.append(File.generated(config, f"pictures/{picture.name}", abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, config: "MkDocsConfig", **_: object) -> str:
    """Raises FileNotFoundError for a link to a file that the repository does not have."""
    docs, repository = Path(config.docs_dir), config.repo_url

    def elsewhere(link: re.Match[str]) -> str:
        path = (docs / link[2]).resolve(strict=True).relative_to(ROOT)
        return f"[{link[1]}]({repository}/blob/main/{path}{link[3] or ''})" if repository else link[1]

    return _LINK.sub(elsewhere, markdown.replace("](../pictures/", "](pictures/"))
