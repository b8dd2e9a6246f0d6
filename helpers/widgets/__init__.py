"""Pictures that move: the explorers' base, those of several lessons, and what shows a run while it lasts."""
