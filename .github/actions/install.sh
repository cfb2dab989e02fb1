#!/usr/bin/env bash
# Install ndld-flow into an environment of its own, and put it on the PATH of later steps.
set -euo pipefail
python="$(command -v python3 || command -v python)"
"$python" -m venv "$RUNNER_TEMP/ndld-flow"
programs="$RUNNER_TEMP/ndld-flow/bin"
[ -d "$programs" ] || programs="$RUNNER_TEMP/ndld-flow/Scripts" # Windows
package="${PACKAGE:-$GITHUB_ACTION_PATH}"
# Extras come second: the files of onnxruntime-gpu must replace those of onnxruntime (docs/how-to/install.md).
for what in "$package" ${EXTRAS:+"$package[$EXTRAS]"}; do
    "$programs/python" -m pip install --quiet --disable-pip-version-check "$what"
done
echo "$programs" >>"$GITHUB_PATH"
"$programs/ndld-flow" --version
