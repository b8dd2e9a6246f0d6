"""Explorers: pictures that move. Each is a pure drawing function with ipywidgets on top."""
