"""Somebody's first steps."""
