"""What these tests share is on the path: peers.py."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
