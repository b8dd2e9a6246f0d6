"""Build the reading edition: all lessons as a static site, from their stored outputs. Nothing is executed.

    pip install -r docs/requirements.txt
    python tools/build_site.py               to build/site; open its index.html, no server is needed

The pages are the README, the lessons, what is in docs/, and a glossary of what the lessons' recaps explain.
They are collected in build/pages, where they get what only the site needs; Sphinx does the rest, and any
warning of its is an error. Links within the site are checked; others are listed in build/external_links.txt.
"""

import argparse
import base64
import io
import re
import shutil
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
from bs4 import BeautifulSoup
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
WORDS = "**Words**:"
TOC = """

```{{toctree}}
:hidden:
:caption: {caption}

{pages}
```
"""


ROW = re.compile(r"^\| \[(\d\d)\]\((.+?)\) \| (.+?) \| (\d+) \| (\d+) \| .+? \| .+? \| (.+?) \|\n",
                 re.MULTILINE)
CARD = """:::{{grid-item-card}} {number} · {question}
:link: /{page}
:link-type: doc
:img-top: {picture}
:img-alt: ""

{minutes} minutes, and {exercises} of exercises

{you_will}
:::
"""
RUN = """:::{{dropdown}} Run this lesson yourself
Set the course up as [its first page](../index.md) says, then:

```sh
.venv/bin/jupyter lab notebooks/{name}
```
:::"""
#: What the lessons use everywhere, and their recaps do not explain.
ABBREVIATIONS = {
    "AMP": "automatic mixed precision: torch chooses for each operation whether it computes in 16 or 32 bits",
    "CUDA": "NVIDIA's platform for programs on its GPUs; torch's device `cuda` is such a GPU",
    "DDP": "DistributedDataParallel: a copy of the model in each process; every step averages the gradients",
    "DP": "DataParallel: one process with a thread for each GPU; torch advises DDP in its place",
    "FSDP": "Fully Sharded Data Parallel: data parallel training in which each rank keeps a piece of "
            "weights, gradients and optimizer states (ZeRO-3); torch's function is `fully_shard`",
    "HSDP": "hybrid sharding: FSDP within a group of ranks, copies between the groups",
    "gloo": "the library with which torch's processes talk over CPUs",
    "NCCL": "NVIDIA's library for collectives between GPUs, which torch uses for the device `cuda`",
    "torchrun": "torch's command that starts the ranks of a script on a machine, and watches them",
}


def words(book):
    """The terms that a lesson's recap explains: {term: explanation}.

    Raises:
        ValueError: one of them is not written `*term*, explanation`.
    """
    found = {}
    for paragraph in re.findall(r"\*\*Words\*\*:\s*(.+?)(?:\n\n|\Z)", texts(book), re.DOTALL):
        for item in " ".join(paragraph.split()).rstrip(".").split("; "):
            parts = re.fullmatch(r"((?:\*[^*]+\*(?: and )?)+)[,:] (.+)", item)
            if not parts:
                raise ValueError(f"{item!r} in a lesson's **Words**: write `*term*, explanation`, "
                                 "and `;` between two")
            found[parts[1].replace("*", "")] = parts[2]
    return found


def texts(book):
    return "\n\n".join(cell.source for cell in book.cells if cell.cell_type == "markdown")


def glossary(lessons):
    """A page of all terms, each with what the lessons, {path on the site: notebook}, say of it."""
    entries = {term.lower(): (term, {meaning: []}) for term, meaning in ABBREVIATIONS.items()}
    for path, book in lessons.items():
        for term, explanation in words(book).items():
            said = entries.setdefault(term.lower(), (term, {}))[1]
            said.setdefault(explanation, []).append(f"[{path.name[:2]}]({path.as_posix()})")
    page = ["# Glossary", "The words that the lessons explain, each with the lesson that does.",
            "```{glossary}"]
    for _, (term, said) in sorted(entries.items()):
        explained = (f"{text} ({', '.join(where)})" if where else text for text, where in said.items())
        page.append(f"{term}\n  " + "; ".join(explained))
    return "\n\n".join([*page, "```", ""])


def for_reading(book):
    """Change a lesson, in place, into what its page needs; what it says stays as it is."""
    for cell in book.cells:
        if cell.cell_type == "markdown" and WORDS in cell.source:
            before, after = cell.source.split(WORDS)
            for term in words(book):
                italics = re.escape(term).replace(r"\ and\ ", r"\*\s+and\s+\*").replace(r"\ ", r"\s+")
                after = re.sub(rf"\*{italics}\*", f"{{term}}`{term}`", after)
            cell.source = before + WORDS + after
        if cell.cell_type != "code":
            continue
        if cell.metadata.get("jupyter", {}).get("source_hidden"):
            cell.metadata["tags"] = [*cell.metadata.get("tags", ()), "remove-input"]
        if moves := re.search(r"^(?:display\()?(\w+_explorer)\((.*?)\)+$", cell.source, re.MULTILINE):
            cell.outputs = in_steps(*moves.groups(), cell.outputs)
        if cell.source.startswith("bet("):
            del cell.outputs[0]  # "You have not bet yet.": nobody bets on the site
        for output in cell.outputs:
            if alt := output.get("metadata", {}).get("image/png", {}).get("alt"):
                cell.metadata["mystnb"] = {"image": {"alt": alt}}
            if html := output.get("data", {}).get("text/html"):
                # Of a listing, of a page to present from; the site has its own.
                html = re.sub(r"<(style|script)>.*?</\1>", "", html, flags=re.DOTALL)
                output.data["text/html"] = re.sub(r'href="(\w+)\.ipynb(#[^"]*)?"', r'href="\1.html"', html)
    return book


def in_steps(name, arguments, outputs):
    """What an explorer shows on the site: it moves, under its outputs if it has arguments or is not alone."""
    picture = ROOT / "docs" / "moving" / f"{name}.svg"
    if not picture.exists():
        return outputs
    figure = f'<figure class="steps">{picture.read_text(encoding="utf-8")}</figure>'
    stays = outputs if arguments or len(outputs) > 1 else ()
    return [*stays, nbformat.v4.new_output("display_data", {"text/html": figure})]


def first_page(readme, books, pages):
    """The README, in which a card for each lesson stands after the first paragraph, in place of the table."""
    cards = []
    for number, path, question, minutes, exercises, you_will in ROW.findall(readme):
        picture = f"cards/{number}.png"
        write(pages / picture, first_picture(books[Path(path)]))
        cards.append(CARD.format(number=number, page=path.removesuffix(".ipynb"), question=question,
                                 minutes=minutes, exercises=exercises, picture=picture,
                                 you_will=you_will[0].upper() + you_will[1:]))
    grid = "\n".join(["::::{grid} 1 2 2 2", ":gutter: 3", "", *cards, "::::", ""])
    before, start, after = readme.partition("\n## Start\n")
    intro, mark, picture = before.partition("\n![")
    table = re.search(r"(?s)## The lessons\n\n\|.*?\n\n", after)[0]
    after = after.replace(table, "## What the minutes mean\n\n")
    first = f"{intro}\n\n[Set it up](#start), or look around first.\n\n## The lessons\n\n{grid}"
    return f"{first}{mark}{picture}{start}{after}"


def first_picture(book):
    """A lesson's first picture, for its card: 720 × 405 pixels, PNG."""
    pngs = (output.data["image/png"] for cell in book.cells for output in cell.get("outputs", ())
            if "image/png" in output.get("data", {}))
    image = Image.open(io.BytesIO(base64.b64decode(next(pngs)))).convert("RGB")
    image = image.crop((0, 0, image.width, min(image.height, image.width * 9 // 16)))
    image.thumbnail((720, 405))
    paper, file = Image.new("RGB", (720, 405), "white"), io.BytesIO()
    paper.paste(image, ((720 - image.width) // 2, (405 - image.height) // 2))
    paper.quantize(64).save(file, "png", optimize=True)
    return file.getvalue()


def for_the_site(text, pages, folder):
    """Markdown of `folder`, in which links to what is not on the site are text; the README is page one."""
    def keep(link):
        path, mark, heading = link[2].partition("#")
        if not path or urlsplit(path).scheme:
            return link[0]
        there = (folder / path).resolve()
        if there == ROOT / "README.md":
            path = path.replace("README", "index")
        return f"[{link[1]}]({path}{mark}{heading})" if there in pages else link[1]

    return re.sub(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)", keep, text)


def collect(pages):
    """Write the site's pages below `pages`."""
    lessons, books, guides = (sorted(ROOT.glob(which)) for which in
                              ("notebooks/[0-9]*.ipynb", "notebooks/[!0-9]*.ipynb", "docs/*.md"))
    pictures = [*ROOT.glob("docs/*.png"), *ROOT.glob("docs/*.svg")]
    read = {path.relative_to(ROOT): nbformat.read(path, as_version=4) for path in lessons + books}
    taught = {path: book for path, book in read.items() if ROOT / path in lessons}
    write(pages / "glossary.md", glossary(taught))
    for path, book in read.items():
        if ROOT / path in lessons:
            book.cells.insert(1, nbformat.v4.new_markdown_cell(RUN.format(name=path.name)))
        write(pages / path, nbformat.writes(for_reading(book)))
    for path in [ROOT / "README.md", *guides]:
        text = path.read_text(encoding="utf-8")
        text = for_the_site(text, [ROOT / "README.md", *lessons, *books, *guides, *pictures], path.parent)
        if path.name == "README.md":
            around = [*books, *guides, ROOT / "glossary.md"]
            text = first_page(text, read, pages) + toc("Lessons", lessons) + toc("Around them", around)
            path = path.with_name("index.md")
        write(pages / path.relative_to(ROOT), text)
    for path in pictures:
        write(pages / path.relative_to(ROOT), path.read_bytes())


def toc(caption, paths):
    return TOC.format(caption=caption, pages="\n".join(path.relative_to(ROOT).as_posix() for path in paths))


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def links(site):
    """What the pages of a built site link to and show: (broken, external); each a list of (page, target)."""
    trees = {page: BeautifulSoup(page.read_bytes(), "html.parser") for page in sorted(site.rglob("*.html"))}
    names = {page: {tag["id"] for tag in tree.find_all(id=True)} for page, tree in trees.items()}
    broken, external = [], []
    for page, tree in trees.items():
        tags = tree(["a", "img", "link", "script"])
        for target in sorted({tag.get("href") or tag.get("src") or "" for tag in tags}):
            parts = urlsplit(target)
            there = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            if parts.scheme or parts.netloc:
                external.append((page, target))
            elif not there.is_file() or (parts.fragment and unquote(parts.fragment) not in names[there]):
                broken.append((page, target))
    return broken, external


def main():
    parser = argparse.ArgumentParser(description="Build the reading edition of the course.")
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "build",
                        help="for pages/ and site/; build/")
    folder = parser.parse_args().folder.resolve()
    try:
        from sphinx.cmd.build import build_main
    except ImportError:
        sys.exit("For the site: pip install -r docs/requirements.txt")
    pages, site = folder / "pages", folder / "site"
    for old in (pages, site):
        shutil.rmtree(old, ignore_errors=True)
    collect(pages)
    if build_main(["-W", "--keep-going", "-q", "-c", str(ROOT / "docs"), "-d", str(folder / "doctrees"),
                   str(pages), str(site)]):
        sys.exit("The site was not built: see the warnings above.")
    broken, external = links(site)
    if broken:
        sys.exit("\n".join(f"{page.relative_to(site)} links to {link}, which is not there"
                           for page, link in broken))
    listed = sorted({f"{link}\n" for _, link in external})
    (folder / "external_links.txt").write_text("".join(listed))
    print(site / "index.html")


if __name__ == "__main__":
    main()
