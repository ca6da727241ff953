"""`python -m sparring` is `spar`."""

import sys

from sparring.cli import main

sys.exit(main())
