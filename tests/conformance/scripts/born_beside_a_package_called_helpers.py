"""The script's own package helpers, with modules called like the course's, is what it imports."""
from helpers.launcher import NAME
from helpers.reporting import report

report(NAME)
