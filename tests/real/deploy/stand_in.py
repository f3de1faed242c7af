#!/usr/bin/env python3
"""Stands in for gcloud or terraform, by the name that it is called by: records, and answers from a file.

``ANSWERS`` names a JSON file with, for each program, a list of rules: ``[pattern, output, exit code]``.
The first pattern found in the command line (for ``terraform console``: with what it is asked) answers;
nothing found is success without output. Each call is a line in the file that ``CALLS`` names. What
``gcloud secrets`` is given for a secret is kept in the folder that ``SECRETS`` names.
"""

import json
import os
import re
import sys
from pathlib import Path

program = Path(sys.argv[0]).name
line = " ".join(sys.argv[1:])
if program == "terraform" and "console" in sys.argv:
    line += " " + sys.stdin.read().strip()
with open(os.environ["CALLS"], "a", encoding="utf-8") as calls:
    calls.write(f"{program} {line}\n")
if sys.argv[1:2] == ["secrets"] and "--data-file=-" in sys.argv:
    Path(os.environ["SECRETS"], sys.argv[3]).write_text(sys.stdin.read())
for pattern, output, code in json.loads(Path(os.environ["ANSWERS"]).read_text())[program]:
    if re.search(pattern, line):
        print(output, file=sys.stderr if code else sys.stdout)
        sys.exit(code)
