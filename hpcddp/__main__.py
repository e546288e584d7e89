"""`python -m hpcddp`: hands over to the command line."""

import sys

from hpcddp.config.layout import EXIT_INTERRUPTED

if __name__ == "__main__":
    try:
        from hpcddp.cli import main
    except KeyboardInterrupt:  # Ctrl-C while the command line itself is being loaded
        sys.exit(EXIT_INTERRUPTED)
    main()
