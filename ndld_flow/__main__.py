"""`python -m ndld_flow` is `ndld-flow`."""

from ndld_flow.cli import main

if __name__ == "__main__":
    main()
