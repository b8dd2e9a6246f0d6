"""Pictures that move: explorers, drawing functions with ipywidgets on top; and what shows a run while it lasts."""
