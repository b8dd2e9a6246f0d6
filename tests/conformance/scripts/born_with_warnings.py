"""Warnings are shown as Python shows them: once a line, a DeprecationWarning only in the script itself."""
import sys
import warnings

print(sys.warnoptions, ("default", None, DeprecationWarning, "__main__", 0) in warnings.filters)
for _ in range(3):
    warnings.warn("in a loop")  # noqa: B028
    warnings.warn("old", DeprecationWarning)  # noqa: B028
    warnings.warn("a file was left open", ResourceWarning)  # noqa: B028
    warnings.warn("soon old", PendingDeprecationWarning)  # noqa: B028
