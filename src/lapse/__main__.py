"""`python -m lapse` is the `lapse` command."""

import sys

from lapse.cli import main

sys.exit(main())
