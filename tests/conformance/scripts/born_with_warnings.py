"""Warnings are shown as Python shows them: once a line, a DeprecationWarning only in the script itself."""
# differs: already-imported
import sys
import warnings

print(len(warnings.filters) == 5, warnings.filters[-5])
print(sys.warnoptions, warnings.showwarning.__module__)
for _ in range(3):
    warnings.warn("in a loop")  # noqa: B028
    warnings.warn("old", DeprecationWarning)  # noqa: B028
    warnings.warn("a file was left open", ResourceWarning)  # noqa: B028
    warnings.warn("soon old", PendingDeprecationWarning)  # noqa: B028
