"""What belongs to one lesson, a folder each: exercises, the scripts that it launches, its explorer."""
