#!/usr/bin/env bash
# Name the cache: a key for the job, and the digest of all that decides the recipe's result.
set -euo pipefail
source "$(dirname "$0")/lines.sh"
read_lines OVERRIDES
arguments=(${lines[@]+"${lines[@]}"})
read_lines OPTIONS
for option in ${lines[@]+"${lines[@]}"}; do # `plan` has only these
    case "$option" in --trust | -m | --multirun) arguments+=("$option") ;; esac
done
key="${KEY:-$(basename "$RECIPE" .yaml)}"
echo "key=${key//[^A-Za-z0-9._-]/-}" >>"$GITHUB_OUTPUT"
# A recipe that cannot be planned has no digest. The run explains why.
digest="$(ndld-flow plan "$RECIPE" ${arguments[@]+"${arguments[@]}"} --digest --outputs "$RUNNER_TEMP/ndld-flow-plan" 2>/dev/null || true)"
echo "digest=$digest" >>"$GITHUB_OUTPUT"
