"""`python -m ndld_flow` is `ndld-flow`.

Python's own imports before this module search the current directory; those of `python -P -m ndld_flow` do not.
"""

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]  # a file `json.py` beside a recipe must not be imported

from ndld_flow.cli import main

if __name__ == "__main__":
    main()
