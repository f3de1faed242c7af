#!/usr/bin/env python3
"""Simulates gcloud and other tools, by the name of its file: records calls, and answers from a file.

``ANSWERS`` names a JSON file with, for each program, a list of rules: ``[pattern, output, exit code]``.
The first pattern that matches is used. It is searched in the command line, which is prefixed with the
count of equal calls: ``#2 topics list`` is the second call. Without a match, the program in ``REAL``
(JSON) is run; if there is none, the call succeeds without output. Each call is a line in the file that
``CALLS`` names. The data of a secret for ``gcloud secrets`` is stored in the folder of ``SECRETS``. The
state, in the file ``STATE``, keeps what the variables of the environment are at ``terraform apply``.
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
    name = sys.argv[4] if sys.argv[2] == "versions" else sys.argv[3]
    Path(os.environ["SECRETS"], name).write_text(sys.stdin.read())
if program == "terraform" and "apply" in sys.argv:
    kept = {key[7:]: value for key, value in os.environ.items() if key.startswith("TF_VAR_")}
    Path(os.environ["STATE"]).write_text(json.dumps(kept))
for pattern, output, code in json.loads(Path(os.environ["ANSWERS"]).read_text())[program]:
    if re.search(pattern, numbered):
        print(output, file=sys.stderr if code else sys.stdout)
        sys.exit(code)
real = json.loads(os.environ["REAL"]).get(program)
if real:
    os.execv(real, [program, *sys.argv[1:]])
