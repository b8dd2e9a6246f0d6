"""What belongs to one lesson alone, a folder each: its exercises, the scripts that it launches, its explorer."""
