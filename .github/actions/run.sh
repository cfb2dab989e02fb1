#!/usr/bin/env bash
# Run the recipe. The exit code is an output: a later step ends the job with it, after the comment.
set -uo pipefail
source "$(dirname "$0")/lines.sh"
read_lines OVERRIDES
arguments=(${lines[@]+"${lines[@]}"})
read_lines OPTIONS
arguments+=(${lines[@]+"${lines[@]}"})
log="$RUNNER_TEMP/ndld-flow-run.txt"
# Names of models and recipes must not be read as commands of the runner.
token="ndld-flow-$RANDOM$RANDOM$RANDOM"
echo "::stop-commands::$token"
ndld-flow run "$RECIPE" ${arguments[@]+"${arguments[@]}"} 2>&1 | tee "$log"
exit_code="${PIPESTATUS[0]}"
echo "::$token::"
# Without a report there is no run: `latest` would be an earlier one, from the cache.
report="$(sed -n 's/^report //p' "$log" | tail -n 1)"
{
    echo "exit-code=$exit_code"
    echo "log=$log"
    echo "report=$report"
    echo "run=${report%/*}"
} >>"$GITHUB_OUTPUT"
