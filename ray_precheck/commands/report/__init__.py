"""One HTML file of the files of any command, for people to look at."""
