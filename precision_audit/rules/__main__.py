"""`python -m precision_audit.rules [README.md]`: write the rule table between the markers of that file."""

import sys
from pathlib import Path

from precision_audit.rules import manual

manual.write(Path(sys.argv[1] if len(sys.argv) > 1 else "README.md"))
