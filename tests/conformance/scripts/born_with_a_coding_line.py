# coding: utf-7
"""A script says in which coding it is written."""
print("+AOQA9gD8-", "+JgM-")
