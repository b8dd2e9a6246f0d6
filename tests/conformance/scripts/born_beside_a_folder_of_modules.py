"""Packages, modules in folders without __init__.py, and data files beside the script are found."""
from importlib import import_module, resources

from models import net
from plain import inner

print(net.NAME, inner.NAME, import_module("models.net") is net, inner.__name__)
print(resources.files("models").joinpath("words.txt").read_text().split())
