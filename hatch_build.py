"""What a wheel of the course has beside its packages, and what only the checkout of the README's command installs."""

from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

#: JupyterLab's settings. They are for an environment of the course's own, never for a lab's: not in a wheel.
SETTINGS = {
    # JupyterLab refuses to start as root, which is what containers run as, unless its configuration says otherwise.
    # The token that protects it stays as it is.
    "helpers/jupyter_config.json": "etc/jupyter/jupyter_config.json",
    # JupyterLab does not ask, over a picture, whether it may fetch news.
    "helpers/overrides.json": "share/jupyter/lab/settings/overrides.json",
    # In this environment's kernels, a NameError says which cell of a lesson is to be run first, even before the first.
    "helpers/ipython_kernel_config.json": "etc/ipython/ipython_kernel_config.json",
    # What JupyterLab leaves out for those who listen, or use keys.
    "helpers/labextension": "share/jupyter/labextensions/parallel-pytorch-course",
    # With it, stored explorers play.
    "helpers/widgets/stage.js": "share/jupyter/labextensions/parallel-pytorch-course/static/stage.js",
    "helpers/widgets/stage.css": "share/jupyter/labextensions/parallel-pytorch-course/static/stage.css",
}


class Course(BuildHookInterface):
    """Hatchling calls it for each wheel that it builds; `pip install -e .` builds one of version "editable"."""

    def initialize(self, version, build_data):
        if version == "editable":
            build_data["shared_data"].update(SETTINGS)
            return
        # What a checkout has beside the packages: helpers/places.py finds it here and there.
        inside = {"data/digits": "helpers/shipped/digits", "data/records": "helpers/shipped/records"}
        for path in Path(self.root, "notebooks").glob("*.ipynb"):
            inside[f"notebooks/{path.name}"] = f"lessons/notebooks/{path.name}"
        build_data["force_include"].update(inside)
