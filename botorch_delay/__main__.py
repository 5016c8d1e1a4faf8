"""``python -m botorch_delay``."""

import sys

from botorch_delay.cli import main

sys.exit(main())
