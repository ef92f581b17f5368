"""Random mutants of the package: would its unit tests notice that the code is wrong?"""
