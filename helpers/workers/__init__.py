"""The scripts that lessons are about, a folder per lesson: anything that `torchrun SCRIPT` runs, unchanged."""
