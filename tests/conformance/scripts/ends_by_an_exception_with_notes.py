"""An exception's notes are shown, and all lines of its message."""
# nprocs: 1
error = ValueError("boom\nsecond line ☃")
error.add_note("a note")
raise error
