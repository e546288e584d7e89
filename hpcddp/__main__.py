"""`python -m hpcddp`, and the `hpcddp` script: hands over to the command line."""

import sys

from hpcddp.config.layout import EXIT_INTERRUPTED


def main() -> None:
    """Run the command line and exit with its code; see `hpcddp.cli.main`."""
    try:
        from hpcddp import cli
    except KeyboardInterrupt:  # Ctrl-C while the command line itself is being loaded
        sys.exit(EXIT_INTERRUPTED)
    cli.main()


if __name__ == "__main__":
    main()
