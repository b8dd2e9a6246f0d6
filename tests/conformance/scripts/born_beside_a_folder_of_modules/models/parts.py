NAME = "parts"
