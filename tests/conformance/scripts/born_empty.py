"""An empty script does nothing, in good order."""
