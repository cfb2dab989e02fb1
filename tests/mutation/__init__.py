"""A mutation tester: it changes one place of a module at a time, and counts the changes that the tests catch.

`python -m tests.mutation --help` lists the options.
"""
