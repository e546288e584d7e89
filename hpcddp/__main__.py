"""`python -m hpcddp`: hands over to the command line."""

from hpcddp.cli import main

if __name__ == "__main__":
    main()
