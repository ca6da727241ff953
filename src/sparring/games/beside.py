"""The folder that a command is given in holds its user's own code: games, environments, networks, algorithms."""

import os
import sys


def look_beside() -> None:
    """Modules are found in the current folder from now on: an installed command does not look there by itself."""
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())
