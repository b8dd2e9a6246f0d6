"""Slides of any lesson: jupyter nbconvert --to slides --config docs/slides/config.py notebooks/00_start_here.ipynb

Makes build/slides/….slides.html, one file that needs no network: reveal.js, which sphinx-revealjs brings
(docs/requirements.txt), goes into it. Space turns the pages, F fills the screen, O shows all slides; with ?print-pdf
behind the address the browser prints them. `--SlidesExporter.theme=dark` makes dark ones.
"""

from importlib.util import find_spec
from pathlib import Path

if find_spec("sphinx_revealjs") is None:
    raise SystemExit("For slides: pip install -r docs/requirements.txt")

reveal = Path(find_spec("sphinx_revealjs").origin).parent / "_static" / "revealjs" / "dist"
here = Path(__file__).parent
c = get_config()  # noqa: F821
c.NbConvertBase.display_data_priority = ["text/html", "image/svg+xml", "image/png", "text/markdown", "text/plain"]
c.TemplateExporter.extra_template_basedirs = [str(here.parent)]
c.TemplateExporter.template_name = here.name
c.TemplateExporter.extra_template_paths = [str(reveal)]
c.FilesWriter.build_directory = str(here.parents[1] / "build" / "slides")
