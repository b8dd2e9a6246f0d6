"""Temporary files and folders that the script still has go when it ends."""
import tempfile
from pathlib import Path

folder = tempfile.TemporaryDirectory(dir=".", prefix="folder-")
file = tempfile.NamedTemporaryFile("w", dir=".", prefix="file-")
Path(folder.name, "inside").write_text("x")
kept = tempfile.NamedTemporaryFile("w", dir=".", delete=False)
kept.write("kept")
Path(kept.name).rename(f"kept-by-{Path(kept.name).exists()}")
