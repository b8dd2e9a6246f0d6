log = open("sibling.txt", "w")
