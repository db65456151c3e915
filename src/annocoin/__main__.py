"""`python -m annocoin` is the command line."""

from annocoin.cli import main

main()
