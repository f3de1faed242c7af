#!/bin/sh
# Starts the file of this archive whose version of Python is on PATH.
here=$(dirname "$(readlink "$0" || echo "$0")")
for python in python3.13 python3.12 python3.11; do
  for tool in "$here"/kubectl-tng-*-"$python"; do
    if [ -x "$tool" ] && command -v "$python" >/dev/null; then exec "$tool" "$@"; fi
  done
done
echo "Error: kubectl tng needs python3.11, python3.12 or python3.13 on PATH" >&2
exit 1
