"""Planted one-line changes, each of which the ordinary tests must notice.

``scripts/mutants`` plants them one after the other in a copy of the tree and runs, for each, the tests that
are named beside it: the mutant is killed if they fail, and has survived if they pass. Then a test is
missing, and is to be written; the mutant stays. One file here for each part of the project.

::

    table        what a mutant is, and all there are
    tree         a copy of the tree, with and without a mutant
    judge        runs the tests of a mutant
    __main__     the command
"""
