#!/usr/bin/env python3
"""Stands in for gcloud and others, by the name that it is called by: records, and answers from a file.

``ANSWERS`` names a JSON file with, for each program, a list of rules: ``[pattern, output, exit code]``.
The first pattern found answers, in the command line with its number before it: ``#2 topics list`` when
that is called for the second time. Nothing found is success without output; for a program of which
``REAL`` (JSON) names the real one, that one's answer. Each call is a line in the file that ``CALLS``
names. What ``gcloud secrets`` is given for a secret is kept in the folder that ``SECRETS`` names.
"""

import json
import os
import re
import sys
from pathlib import Path

program = Path(sys.argv[0]).name
line = " ".join(sys.argv[1:])
calls = Path(os.environ["CALLS"])
with calls.open("a", encoding="utf-8") as file:
    file.write(f"{program} {line}\n")
numbered = f"#{calls.read_text().splitlines().count(f'{program} {line}')} {line}"
if sys.argv[1:2] == ["secrets"] and "--data-file=-" in sys.argv:
    Path(os.environ["SECRETS"], sys.argv[3]).write_text(sys.stdin.read())
for pattern, output, code in json.loads(Path(os.environ["ANSWERS"]).read_text())[program]:
    if re.search(pattern, numbered):
        print(output, file=sys.stderr if code else sys.stdout)
        sys.exit(code)
real = json.loads(os.environ["REAL"]).get(program)
if real:
    os.execv(real, [program, *sys.argv[1:]])
