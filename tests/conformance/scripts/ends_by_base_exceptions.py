"""An exception that is no Exception ends the rank like any other."""
# nprocs: 1
raise GeneratorExit("of no generator")
